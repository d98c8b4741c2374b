"""HTTP beside its own libraries: an empty call, 64 MB up and down, many calls at once, and memory.

Run: python benchmarks/bench_http.py
"""

from __future__ import annotations

import argparse
import asyncio
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

if TYPE_CHECKING:
    from collections.abc import Callable

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
    config = uvicorn.Config(Starlette(routes=[Route("/", route, methods=["GET", "POST"])]), log_config=None)
    server = uvicorn.Server(config)
    threading.Thread(target=lambda: asyncio.run(server.serve([sock])), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return server, int(sock.getsockname()[1])


def timed(function: Callable[[], Any], count: int) -> float:
    """Median seconds."""
    function()
    out = []
    for _ in range(count):
        began = time.perf_counter()
        function()
        out.append(time.perf_counter() - began)
    return median(out)


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
        own = timed(lambda: get(target.nothing()), 300)
        other = timed(lambda: pool.request("POST", "/", body=b"x" * 200), 300)
        print(f"empty call: {own * 1e6:.0f} us, bare route {other * 1e6:.0f} us, ratio {own / other:.2f}")
        own, other = timed(lambda: get(target.takes(array)), 5), timed(up, 5)
        print(f"64 MB up: {own:.3f} s, bare {other:.3f} s, bandwidth ratio {other / own:.2f}")
        own = timed(lambda: get(submit(target.gives, BYTES)), 5)
        other = timed(lambda: pool.request("GET", "/").data, 5)
        print(f"64 MB down: {own:.3f} s, bare {other:.3f} s, bandwidth ratio {other / own:.2f}")
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
