"""HTTP beside its own libraries: an empty call, 64 MB up and down, many calls at once, and memory.

Ours and the bare route run in turns, so that other load on the machine meets both.

Run: python benchmarks/bench_http.py
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import socket
import threading
import time
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
from twinkle_remote.http.client.small_requests import SmallRequests

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


def bare() -> tuple[uvicorn.Server, int]:
    """A bare starlette route, in a thread."""
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
    return server, int(sock.getsockname()[1])


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
    """A server in a process of its own, with the bare route beside it."""
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]), serve([Target], port=0, token=TOKEN) as server:
        beside, port = bare()
        ready.send((server.address, port))
        done.wait()
        beside.should_exit = True


def measure(address: str, port: int, calls: int) -> None:
    """Print the figures."""
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=4)
    array = np.ones(BYTES, dtype=np.uint8)
    view = array.data
    headers = {"content-length": str(BYTES)}

    def up() -> Any:
        parts: Any = (view[at : at + (1 << 20)] for at in range(0, BYTES, 1 << 20))
        return pool.request("POST", "/", body=parts, headers=headers)

    with session("http", address=address, token=TOKEN):
        target = on("one").create(Target)
        small = SmallRequests("127.0.0.1", port, None)
        calls_of = (
            lambda: get(target.nothing()),
            lambda: pool.request("POST", "/", body=b"x" * 200),
            lambda: small.post("/", b"x" * 200, {}, 10.0, 10.0),
        )
        own, bare_pool, bare_small = in_turns(calls_of, 10, 100)
        print(f"load {os.getloadavg()[0]:.1f}")
        for quantile in (0.1, 0.5):
            one, other, third = (taken[int(len(taken) * quantile)] * 1e6 for taken in (own, bare_pool, bare_small))
            print(
                f"empty call, quantile {quantile}: {one:.0f} us; bare route {other:.0f} us, ratio {one / other:.2f}; "
                f"bare route over this client's own connections {third:.0f} us, ratio {one / third:.2f}"
            )
        ours, bare_one = map(median, in_turns((lambda: get(target.takes(array)), up), 5, 1))
        print(f"64 MB up: {ours:.3f} s, bare {bare_one:.3f} s, bandwidth ratio {bare_one / ours:.2f}")
        down = (lambda: get(submit(target.gives, BYTES)), lambda: pool.request("GET", "/").data)
        ours, bare_one = map(median, in_turns(down, 5, 1))
        print(f"64 MB down: {ours:.3f} s, bare {bare_one:.3f} s, bandwidth ratio {bare_one / ours:.2f}")
        began = time.perf_counter()
        get([submit(target.nothing) for _ in range(256)])
        print(f"256 calls at once: {time.perf_counter() - began:.2f} s")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(calls):
            get(target.nothing())
        print(
            f"memory over {calls} calls: {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024:.1f} MB"
        )


def main() -> None:
    """Run."""
    from multiprocessing import get_context

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    options = parser.parse_args()
    context = get_context("spawn")
    near, far = context.Pipe()
    done = context.Event()
    process = context.Process(target=serving, args=(far, done))
    process.start()
    try:
        address, port = near.recv()
        measure(address, port, options.calls)
    finally:
        done.set()
        process.join(60)


if __name__ == "__main__":
    main()
