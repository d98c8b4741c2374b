"""Waits for the calls of all clients, and reports their outcomes to the clients."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from twinkle_remote.backends.support import Inbox
from twinkle_remote.protocol import MemoryQueueBackend

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_http.server.calls.served_call import ServedCall
    from twinkle_http.server.clients.clients import RemoteClient
    from twinkle_remote.backends.serving import ServedSession

_log = logging.getLogger("twinkle.http")
_LOOK_SECONDS = 0.25  # between two looks at all calls: a backend may find out by being asked that a worker is lost
_IDLE_SECONDS = 1.0  # the same without any call: one may be added, and told of by nobody, while the wait begins
_POLL_SECONDS = 0.002  # the same, where the backend does not tell which replies are done


class Watcher:
    """A thread that learns which calls have answers.

    Where a call's answers are numbers and text in this process, the thread that gives the last of them does its work.

    Args:
        session: The session.
    """

    def __init__(self, session: ServedSession) -> None:
        self._session = session
        self._calls: dict[int, ServedCall] = {}
        self._told: Inbox[ServedCall | None] = Inbox()
        self._in_memory = queues_in_memory(session)
        self._seconds = _LOOK_SECONDS
        self._look_at = 0.0
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="twinkle-http-watcher", daemon=True)
        self._thread.start()

    def add(self, outcome: ServedCall) -> None:
        """Watch a call until it is done."""
        outcome.client.use.add("calls")
        outcome.client.in_flight.add(outcome.name)
        self._calls[id(outcome)] = outcome
        backend = self._session.backend
        tell = partial(self._answered if self._in_memory else self._told.put, outcome)
        for reply in outcome.call.pending():
            if not backend.when_done(reply, tell):
                self._seconds = _POLL_SECONDS
                tell()

    def _answered(self, outcome: ServedCall) -> None:
        """A rank has answered; in its thread."""
        if outcome.is_plain(self._session.backend) and not self._ended:
            self._look_safely(outcome)
        else:
            self._told.put(outcome)

    def pending(self, tenant: str | None = None) -> int:
        """Number of calls that are not done: of a tenant, or of all."""
        if tenant is None:
            return len(self._calls)
        return sum(one.client.tenant == tenant for one in self._all())

    def calls_of(self, client: RemoteClient) -> Sequence[ServedCall]:
        """The calls of a client that are not done."""
        return [one for one in self._all() if one.client is client]

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._told.put(None)
        self._thread.join(5.0)

    def _all(self) -> Sequence[ServedCall]:
        while True:
            try:
                return list(self._calls.values())
            except RuntimeError:  # another thread added one meanwhile
                continue

    def _run(self) -> None:
        while not self._ended:
            for one in self._next():
                self._look_safely(one)

    def _look_safely(self, one: ServedCall) -> None:
        try:
            self._look(one)
        except Exception:  # the thread serves all clients, or is a worker's
            _log.exception("the watcher of calls failed")

    def _next(self) -> Iterable[ServedCall]:
        """The calls that are reported to have answers, after a wait for the first; from time to time all calls."""
        told = self._told.take(self._seconds if self._calls else _IDLE_SECONDS)
        found = {id(one): one for one in told if one is not None}
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + self._seconds
            found.update((id(one), one) for one in self._all())
        return found.values()

    def _look(self, one: ServedCall) -> None:
        """Tell what has changed."""
        if id(one) not in self._calls:
            return
        closed = self._session.closed
        over = one.call.done() or closed
        update = one.update(lost=closed)
        if over:
            one.report_over()
            if self._calls.pop(id(one), None) is not None:  # else another thread has done this
                one.client.use.add("calls", -1)
                one.client.in_flight.discard(one.name)
        if update is not None and one.name in one.client.results:
            one.client.publish(update, can_wait=not (over or one.reads_ranks or update.error is not None))


def queues_in_memory(session: ServedSession) -> bool:
    """Whether the workers are threads of this process: to send to them neither waits nor runs anything of a user."""
    return isinstance(session.backend, MemoryQueueBackend) and session.backend.queues_in_memory
