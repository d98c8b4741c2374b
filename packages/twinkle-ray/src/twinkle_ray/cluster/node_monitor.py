"""Heartbeats between this process and the head and nodes of the cluster; Ray needs over a minute to notice a cut link.

To each of them one connection is held open. The system probes it every second while it is quiet, so that many nodes
cost no more time here than one, and it breaks at once when the process at its other end does.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_ray.cluster.places import HEAD, SILENT, SILENT_SECONDS, opened, problem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinkle_ray.cluster.places import Address

_INTERVAL = 1.0  # seconds between two attempts to connect
_GRACE = 3.0  # seconds for which nothing connects, after a connection broke, until a node is lost

_log = logging.getLogger("twinkle.ray")


@dataclass(slots=True, eq=False)
class _Watched:
    """One watched place.

    Attributes:
        name: Its name.
        address: Its host and port.
        connection: Open, or opening.
        tried: When `connection` was opened, on the monotonic clock.
        broken: When the trouble began; None without any.
        problem: What is the matter.
        answered: Whether it has ever answered; one that has not may be behind a firewall.
    """

    name: str
    address: Address
    connection: socket.socket | None = None
    tried: float = 0.0
    broken: float | None = None
    problem: str = SILENT
    answered: bool = False


class NodeMonitor:
    """Holds a connection to the head and to each node, in a thread, and says which of them are lost.

    Args:
        places: Host and port of each, by name.
        interval: Seconds between two attempts to connect.
        grace: Seconds for which nothing connects, until a place is lost.
        report: Called in that thread with the reasons of all lost places by name, when one is lost or answers again.
    """

    def __init__(
        self,
        places: Mapping[str, Address],
        *,
        interval: float = _INTERVAL,
        grace: float = _GRACE,
        report: Callable[[Mapping[str, str]], None] = lambda lost: None,
    ) -> None:
        self._interval, self._grace, self._report = interval, grace, report
        self._selector = selectors.DefaultSelector()
        self._fresh = deque(_Watched(name, address, answered=name == HEAD) for name, address in places.items())
        self._names = set(places)
        self._unsettled: dict[str, _Watched] = {}
        self._lost: dict[str, str] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="twinkle-monitor", daemon=True)
        self._thread.start()

    def any_lost(self) -> bool:
        """Whether the head or a node is lost."""
        return bool(self._lost)

    def lost(self, name: str) -> str | None:
        """The reason why the head or a node is lost; None if it is not lost."""
        return self._lost.get(name)

    def all_lost(self) -> Mapping[str, str]:
        """The reasons of all lost places by name."""
        return dict(self._lost)

    def watch(self, places: Mapping[str, Address]) -> None:
        """Watch further nodes.

        Args:
            places: Host and port of each, by name.
        """
        self._fresh.extend(_Watched(name, at) for name, at in places.items() if name not in self._names)
        self._names.update(places)

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
            if wait([running], self._interval).done:
                running.result()
                return

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._thread.join(10 * self._interval)

    def _loop(self) -> None:
        while not self._closed.is_set():
            while self._fresh:
                one = self._fresh.popleft()
                self._unsettled[one.name] = one
            for one in list(self._unsettled.values()):
                self._tend(one)
            for key, _ in self._selector.select(self._interval / 2):
                self._take_event(key.data)
        for key in list(self._selector.get_map().values()):
            self._drop(key.data)
        self._selector.close()

    def _tend(self, one: _Watched) -> None:
        """Connect anew where the last attempt is old, and say that a place is lost when its time is over."""
        now = time.monotonic()
        if now - one.tried >= self._interval:
            if one.connection is not None:
                self._note(one, SILENT)
            self._connect(one)
        if one.broken is not None and one.answered and now - one.broken >= self._grace and one.name not in self._lost:
            host, port = one.address
            what = "the cluster's head" if one.name == HEAD else "its node"
            problem = f"{SILENT} ({SILENT_SECONDS + self._grace:g} s)" if one.problem == SILENT else one.problem
            self._lost[one.name] = f"{what} at {host}:{port} {problem}"
            _log.error("%s: calls of its workers fail", self._lost[one.name])
            self._report(dict(self._lost))

    def _connect(self, one: _Watched) -> None:
        one.tried = time.monotonic()
        try:
            one.connection = opened(one.address)
        except OSError as error:
            self._note(one, f"cannot be tried: {error}")
        else:
            self._selector.register(one.connection, selectors.EVENT_WRITE, one)

    def _take_event(self, one: _Watched) -> None:
        assert one.connection is not None
        if one.name not in self._unsettled:
            self._read(one)
            return
        number = one.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number != 0:
            self._note(one, problem_of(number))
            return
        one.answered, one.broken = True, None
        del self._unsettled[one.name]
        self._selector.modify(one.connection, selectors.EVENT_READ, one)
        if self._lost.pop(one.name, None) is not None:
            _log.warning("%s:%s answers again", *one.address)
            self._report(dict(self._lost))

    def _read(self, one: _Watched) -> None:
        """Read what came over a connection: Ray's greeting, which is of no use here, or its end."""
        assert one.connection is not None
        try:
            if one.connection.recv(65536):
                return
            problem = SILENT
        except BlockingIOError:
            return
        except OSError as error:
            problem = problem_of(error.errno)
        self._unsettled[one.name] = one
        self._note(one, problem)

    def _note(self, one: _Watched, problem: str) -> None:
        self._drop(one)
        one.problem = problem
        one.broken = time.monotonic() if one.broken is None else one.broken

    def _drop(self, one: _Watched) -> None:
        connection, one.connection = one.connection, None
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()


def _run(function: Callable[[], object], running: Future[object]) -> None:
    try:
        running.set_result(function())
    except BaseException as error:
        running.set_exception(error)
