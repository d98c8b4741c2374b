"""A component over HTTP against Ray Serve with FastAPI: an empty call, and 2 MB up.

The client is a process, the servers are others. Ours runs the component in a Ray worker, as Serve runs its replica, or
in the server's process (mode threads). Our client asks ours; urllib3 asks Serve's route, with 2 MB as a raw body.
"""

from __future__ import annotations

import logging
import socket
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rows import Row, main, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = "a token of the benchmark"
BYTES = 2_000_000
CALLS = {"empty": 200, "2 MB": 30}


def _mean_ms(what: str, call: Callable[[], object]) -> Callable[[], float]:
    def calls() -> None:
        for _ in range(CALLS[what]):
            call()

    return lambda: seconds(calls) / CALLS[what] * 1e3


def _serve(mode: Any, ready: Any, done: Any) -> None:
    """Our server, in a process of its own."""
    from served_target import Target

    from twinkle_mesh import DeviceGroup
    from twinkle_remote import serve, session

    with session(mode, groups=[DeviceGroup("one", 1, "CPU")]), serve([Target], port=0, token=TOKEN) as server:
        ready.send(server.address)
        done.wait()


@contextmanager
def ours(mode: str, what: str) -> Iterator[Callable[[], float]]:
    from multiprocessing import get_context

    import numpy as np
    from served_target import Target

    from twinkle_remote import get, on, session

    context = get_context("spawn")
    done = context.Event()
    near, far = context.Pipe()
    server = context.Process(target=_serve, args=(mode, far, done))
    server.start()
    try:
        if not near.poll(220):
            raise TimeoutError("the server did not start")
        with session("http", address=near.recv(), token=TOKEN):
            target, array = on("one").create(Target), np.ones(BYTES, dtype=np.uint8)
            calls: dict[str, Callable[[], object]] = {
                "empty": lambda: get(target.nothing()),
                "2 MB": lambda: get(target.takes(array)),
            }
            yield _mean_ms(what, calls[what])
    finally:
        done.set()
        server.join(60)


@contextmanager
def ray_serve(what: str) -> Iterator[Callable[[], float]]:
    from importlib import import_module

    import ray
    import urllib3
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    start: Any = serve.start
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"enable_access_log": False})
    serve.run(import_module("serve_app").Target.bind())
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port)
    body = bytes(BYTES)

    def ask(path: str, body: bytes, expected: bytes) -> None:
        answer = pool.request("POST", path, body=body)
        if answer.data != expected:
            raise RuntimeError(f"{path} answered {answer.status}: {answer.data[:200]!r}")

    try:
        yield _mean_ms(
            what,
            partial(ask, "/nothing", b"", b"null") if what == "empty" else partial(ask, "/takes", body, b"%d" % BYTES),
        )
    finally:
        serve.shutdown()
        ray.shutdown()


SIDES = {
    **{f"ours, {mode}, {what}": partial(ours, mode, what) for mode in ("ray", "threads") for what in CALLS},
    **{f"serve, {what}": partial(ray_serve, what) for what in CALLS},
}
NAMES = {"empty": "an empty call over HTTP", "2 MB": "2 MB up over HTTP"}
AIMS = {("threads", "empty"): 0.17, ("threads", "2 MB"): 0.21}
ROWS = [
    Row(
        f"{name}, {where}", "serve", f"ours, {mode}, {what}", f"serve, {what}", "ms", AIMS.get((mode, what)), rounds=5,
        by_hand="Ray Serve with FastAPI",
    )
    for mode, where in (("ray", "the worker on Ray"), ("threads", "the worker in the server"))
    for what, name in NAMES.items()
]  # fmt: skip

if __name__ == "__main__":
    main(SIDES, ROWS)
