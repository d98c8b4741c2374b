"""HTTP compared with its own libraries: an empty call, 64 MB up and down, many calls at once, and memory.

Ours and a bare route run in turns, so that other load on the machine meets both. The client and each server are
processes of their own. Both have uvicorn's parser h11, and urllib3 asks both.

Run: python -u benchmarks/bench_http.py (20 s), or with --calls 10000 (75 s) for memory too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import socket
import threading
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import urllib3
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from twinkle_mesh import DeviceGroup
from twinkle_remote import get, on, remote_class, remote_function, serve, session, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request

TOKEN = "a token of the benchmark"
BYTES = 64 << 20


@remote_class()
class Target:
    """Does nothing."""

    @remote_function(dispatch="all", collect="first")
    def nothing(self) -> None:
        """An empty call."""

    @remote_function(dispatch="all", collect="first")
    def takes(self, array: Any) -> int:
        """Takes an array."""
        return len(array)

    @remote_function(dispatch="all", collect="first")
    def gives(self, size: int) -> Any:
        """Gives an array."""
        return np.zeros(size, dtype=np.uint8)


def serving_bare(ready: Any, done: Any) -> None:
    """A bare starlette route in a process of its own."""
    payload = bytes(BYTES)

    async def route(request: Request) -> Response:
        size = 0
        async for part in request.stream():
            size += len(part)
        return Response(payload if request.method == "GET" else b"x" * 100)

    sock = socket.create_server(("127.0.0.1", 0))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(Starlette(routes=[Route("/", route, methods=["GET", "POST"])]), log_config=None, http="h11")
    server = uvicorn.Server(config)
    threading.Thread(target=lambda: asyncio.run(server.serve([sock])), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    ready.send((int(sock.getsockname()[1]), os.getpid()))
    done.wait()
    server.should_exit = True


def in_turns(functions: Sequence[Callable[[], Any]], blocks: int, count: int) -> Sequence[Sequence[float]]:
    """Seconds of each function, ascending: they run in turns, so that other load meets all of them."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(blocks):
        for function, taken in zip(functions, seconds, strict=True):
            function()
            for _ in range(count):
                began = time.perf_counter()
                function()
                taken.append(time.perf_counter() - began)
    return [sorted(taken) for taken in seconds]


def serving(ready: Any, done: Any) -> None:
    """Our server in a process of its own."""
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]), serve([Target], port=0, token=TOKEN) as server:
        ready.send((server.address, os.getpid()))
        done.wait()


def processor_seconds(process: int) -> float:
    """Processor time of a process until now."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def processor_times(function: Callable[[], Any], server: int, blocks: int, count: int) -> Sequence[float]:
    """Seconds of the processor that a call takes in the client and in a server: of the block with the least."""
    found = []
    for _ in range(blocks):
        before = [processor_seconds(one) for one in (os.getpid(), server)]
        for _ in range(count):
            function()
        after = [processor_seconds(one) for one in (os.getpid(), server)]
        found.append([(end - begin) / count for end, begin in zip(after, before, strict=True)])
    return min(found, key=sum)


def empty_calls(target: Target, server: int, port: int, bare_server: int) -> None:
    """Print the figures of an empty call, and those of the bare route."""
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port)
    bare = partial(pool.request, "POST", "/", body=b"x" * 200)
    functions: Sequence[Callable[[], Any]] = (lambda: get(target.nothing()), bare)
    taken = in_turns(functions, 20, 100)
    print(f"load {os.getloadavg()[0]:.1f}")
    for quantile in (0.1, 0.5):
        own, other = (one[int(len(one) * quantile)] * 1e6 for one in taken)
        print(f"empty call, quantile {quantile}: {own:.0f} us, bare route {other:.0f} us, ratio {own / other:.2f}")
    servers = (server, bare_server)
    times = [processor_times(one, process, 5, 300) for one, process in zip(functions, servers, strict=True)]
    shown = [f"{near * 1e6:.0f} us in the client, {far * 1e6:.0f} us in the server" for near, far in times]
    print(f"processor: {shown[0]}; bare {shown[1]}; ratio {sum(times[0]) / sum(times[1]):.2f}")


def resident_bytes(process: int) -> int:
    """Memory of a process that is in use."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


def measure(address: str, process: int, bare: tuple[int, int], calls: int) -> None:
    """Print the figures; `bare` is the port and the process of the bare route."""
    port, bare_process = bare
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=4)
    array = np.ones(BYTES, dtype=np.uint8)
    view = array.data
    headers = {"content-length": str(BYTES)}

    def up() -> Any:
        parts: Any = (view[at : at + (1 << 20)] for at in range(0, BYTES, 1 << 20))
        return pool.request("POST", "/", body=parts, headers=headers)

    with session("http", address=address, token=TOKEN):
        target = on("one").create(Target)
        empty_calls(target, process, port, bare_process)
        ours, bare_one = map(median, in_turns((lambda: get(target.takes(array)), up), 5, 1))
        print(f"64 MB up: {ours:.3f} s, bare {bare_one:.3f} s, bandwidth ratio {bare_one / ours:.2f}")
        down = (lambda: get(submit(target.gives, BYTES)), lambda: pool.request("GET", "/").data)
        ours, bare_one = map(median, in_turns(down, 5, 1))
        print(f"64 MB down: {ours:.3f} s, bare {bare_one:.3f} s, bandwidth ratio {bare_one / ours:.2f}")
        began = time.perf_counter()
        get([submit(target.nothing) for _ in range(256)])
        print(f"256 calls at once: {time.perf_counter() - began:.2f} s")
        if not calls:
            return
        for _ in range(2 * calls):  # `stats()` keeps the latest 10,000 calls and 16,384 answers
            get(target.nothing())
        before = [resident_bytes(one) for one in (os.getpid(), process)]
        for _ in range(calls):
            get(target.nothing())
        grown = [(resident_bytes(one) - was) / 1e6 for one, was in zip((os.getpid(), process), before, strict=True)]
        print(f"memory over {calls} calls: {grown[0]:+.1f} MB in the client, {grown[1]:+.1f} MB in the server")


def main() -> None:
    """Run."""
    from multiprocessing import get_context

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=0, help="calls between which memory is compared; 0 for none")
    options = parser.parse_args()
    context = get_context("spawn")
    done = context.Event()
    processes = []

    def started(run: Callable[..., None], *arguments: Any) -> Any:
        near, far = context.Pipe()
        processes.append(context.Process(target=run, args=(*arguments, far, done)))
        processes[-1].start()
        return near.recv()

    try:
        bare = started(serving_bare)
        address, process = started(serving)
        measure(address, process, bare, options.calls)
    finally:
        done.set()
        for process in processes:
            process.join(60)


if __name__ == "__main__":
    main()
