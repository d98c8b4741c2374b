"""Waits for the calls of all clients, and tells the clients what became of them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.http.server.clients import RemoteClient
    from twinkle_remote.http.server.results import CallOutcome
    from twinkle_remote.sessions.runtime import Runtime

_log = logging.getLogger("twinkle.http")
_SLICE_SECONDS = 0.01  # until a call that came meanwhile is looked at


class Watcher:
    """A thread that waits for calls in flight.

    Args:
        runtime: The session.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._calls: dict[int, CallOutcome] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="twinkle-http-watcher", daemon=True)
        self._thread.start()

    def add(self, outcome: CallOutcome) -> None:
        """Watch a call until it is done."""
        outcome.client.use.add("calls")
        with self._changed:
            self._calls[id(outcome)] = outcome
            self._changed.notify()

    def pending(self) -> int:
        """Number of calls that are not done."""
        return len(self._calls)

    def calls_of(self, client: RemoteClient) -> Sequence[CallOutcome]:
        """The calls of a client that are not done."""
        with self._changed:
            return [one for one in self._calls.values() if one.client is client]

    def end(self) -> None:
        """End the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(5.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._calls and not self._ended:
                    self._changed.wait()
                if self._ended:
                    return
                calls = list(self._calls.values())
            try:
                self._look(calls)
            except Exception:  # the thread serves all clients
                _log.exception("the watcher of calls failed")
                with self._changed:
                    self._changed.wait(1.0)

    def _look(self, calls: list[CallOutcome]) -> None:
        """Wait for a moment, and tell what has changed."""
        owners = {reply: one for one in calls for reply in one.call.pending()}
        ready = list(self._runtime.backend.wait(list(owners), _SLICE_SECONDS)) if owners else []
        for one in {id(owners[reply]): owners[reply] for reply in ready}.values():
            one.call.done()
        for one in calls:
            over = not one.call.pending() or self._runtime.closed
            if over or one.call.failed() or one.reads_ranks:
                self._tell(one)
            if over:
                one.tell_over()
                with self._changed:
                    self._calls.pop(id(one), None)
                one.client.use.add("calls", -1)

    def _tell(self, one: CallOutcome) -> None:
        news = one.news(lost=self._runtime.closed)
        if news is not None and one.name in one.client.results:
            one.client.publish(news)
