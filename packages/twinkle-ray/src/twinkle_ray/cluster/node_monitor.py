"""Checks that the head and the nodes of the cluster accept connections; Ray needs up to a minute to notice a loss."""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

import ray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Address = tuple[str, int]
HEAD = "head"
_INTERVAL = 1.0  # seconds between two rounds
_PATIENCE = 3.0  # seconds that one connection may take
_MISSES = 3  # in a row until a node is lost: 3 s if it refuses, 12 s if it is silent

_log = logging.getLogger("twinkle.ray")


class NodeMonitor:
    """Connects to the head and the nodes every few seconds, in a thread.

    Args:
        places: Host and port of each, by name.
        interval: Seconds between two rounds.
        patience: Seconds that one connection may take.
    """

    def __init__(
        self, places: Mapping[str, Address], *, interval: float = _INTERVAL, patience: float = _PATIENCE
    ) -> None:
        self._places = dict(places)
        self._interval, self._patience = interval, patience
        self._misses = {HEAD: 0}  # a node that has never answered is not counted: a firewall may block it
        self._lost: dict[str, str] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="twinkle-monitor", daemon=True)
        self._thread.start()

    @property
    def has_lost(self) -> bool:
        """Whether the head or a node is lost."""
        return bool(self._lost)

    def lost(self, name: str) -> str | None:
        """The reason why the head or a node is lost; None if it is not lost."""
        return self._lost.get(name)

    def watch(self, places: Mapping[str, Address]) -> None:
        """Watch further nodes.

        Args:
            places: Host and port of each, by name.
        """
        self._places = {**self._places, **places}

    def during(self, function: Callable[[], object]) -> None:
        """Run a function that hangs without the head; return without its result if the head is lost meanwhile.

        Args:
            function: Called without arguments; what it raises is raised.
        """
        if self.lost(HEAD) is not None:
            return
        running: Future[object] = Future()
        threading.Thread(target=_run, args=(function, running), name="twinkle-may-hang", daemon=True).start()
        while self.lost(HEAD) is None:
            with suppress(TimeoutError):
                running.result(self._interval)
                return

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._thread.join(self._interval + self._patience)

    def _loop(self) -> None:
        while True:
            for name, problem in connect_all(self._places, self._patience).items():
                self._note(name, problem)
            if self._closed.wait(self._interval):
                return

    def _note(self, name: str, problem: str | None) -> None:
        if problem is None:
            self._misses[name] = 0
            self._lost.pop(name, None)
        elif name in self._misses:
            self._misses[name] += 1
            if self._misses[name] == _MISSES:
                host, port = self._places[name]
                what = "the cluster's head" if name == HEAD else "its node"
                self._lost[name] = f"{what} at {host}:{port} {problem}"
                _log.error("%s: calls of its workers fail", self._lost[name])


def _run(function: Callable[[], object], running: Future[object]) -> None:
    try:
        running.set_result(function())
    except BaseException as error:
        running.set_exception(error)


def connect_all(places: Mapping[str, Address], timeout: float) -> dict[str, str | None]:
    """Connect to all places at once; return the problem of each place, or None.

    Args:
        places: Host and port of each, by name.
        timeout: Seconds for all of them.
    """
    out: dict[str, str | None] = {}
    with selectors.DefaultSelector() as waiting:
        for name, address in places.items():
            try:
                family, kind, protocol, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
                trying = socket.socket(family, kind, protocol)
            except OSError as error:
                out[name] = f"cannot be tried: {error}"
                continue
            trying.setblocking(False)
            trying.connect_ex(where)
            waiting.register(trying, selectors.EVENT_WRITE, name)
        until = time.monotonic() + timeout
        while waiting.get_map() and (events := waiting.select(max(0.0, until - time.monotonic()))):
            for key, _ in events:
                out[key.data] = _ended(waiting, key.fileobj)
        for key in list(waiting.get_map().values()):
            _ended(waiting, key.fileobj)
            out[key.data] = f"does not answer ({timeout:g} s, {_MISSES} times)"
    return out


def _ended(waiting: selectors.BaseSelector, trying: object) -> str | None:
    assert isinstance(trying, socket.socket)
    waiting.unregister(trying)
    with trying:
        number = trying.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number == errno.ECONNREFUSED:
        return "refuses connections: its process ended"
    return None if number == 0 else f"cannot be reached: {errno.errorcode.get(number, number)}"


def places_of(nodes: Iterable[str]) -> dict[str, Address]:
    """Return the host and port of the head and of some nodes of the cluster.

    Args:
        nodes: Ray's ids of them.
    """
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    wanted = set(nodes)
    found = {
        str(node["NodeID"]): (str(node["NodeManagerAddress"]), int(node["NodeManagerPort"]))
        for node in ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own gap
        if node["NodeID"] in wanted
    }
    return {HEAD: (host.strip("[]"), int(port)), **found}
