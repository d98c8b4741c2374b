"""Reads the ends of calls in flight from the server; each request is a sign of life, too."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from twinkle_http.client.connection import NotReachedError
from twinkle_http.messages import UPDATE_ANSWER, UpdateRequest, framed, unpacked
from twinkle_remote.errors import SessionLostError, TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_http.client.connection import Connection
    from twinkle_http.client.results import ServedReply
    from twinkle_http.messages import CallUpdate

_POLL_SECONDS = 20.0


class Poller:
    """A thread that asks the server.

    Args:
        connection: To the server.
        beat: Seconds between two requests while no call is in flight.
        dropped: Takes the names of the results that are no longer used.
    """

    def __init__(self, connection: Connection, beat: float, dropped: Callable[[], list[str]]) -> None:
        self._connection, self._beat, self._dropped = connection, beat, dropped
        self._waiting: dict[str, ServedReply] = {}
        self._early: dict[str, CallUpdate] = {}  # of calls whose requests are not answered yet
        self._changed = threading.Lock()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._after = 0
        self._ended = False
        self._lost: TwinkleError | None = None
        threading.Thread(target=self._run, name="twinkle-http-updates", daemon=True).start()

    def check(self) -> None:
        """Check that the session is there.

        Raises:
            SessionLostError: It is lost. If the server was not reached, it is asked once more, because a restarted
                server says so.
        """
        lost = self._lost
        if isinstance(lost, NotReachedError):
            try:
                self._connection.post("/updates", framed(UpdateRequest(self._after)), patience=0.0)
            except NotReachedError:
                pass
            except TwinkleError as error:
                lost = self._lost = error
        if lost is not None:
            raise type(lost)(str(lost))

    def expect(self, reply: ServedReply) -> None:
        """Wait for the end of a call."""
        name = reply.payload.name
        with self._changed:
            lost, early = self._lost, self._early.pop(name, None)
            if lost is None and early is None:
                self._waiting[name] = reply
        if early is not None:
            reply.take(early)
        elif lost is not None:
            reply.lose(lost)
        self._bell.put(None)

    def end(self) -> None:
        """End the thread; it may be in the middle of a request."""
        self._ended = True
        self._bell.put(None)

    def _run(self) -> None:
        while True:
            if not self._waiting and not self._ended:
                with suppress(queue.Empty):  # nothing rang: it is time for a sign of life
                    self._bell.get(timeout=self._beat)
            if self._ended:
                return
            try:
                self._ask(_POLL_SECONDS if self._waiting else 0.0)
            except Exception as error:  # no other thread would find out
                if not self._ended:
                    self._lose(error)
                return

    def _ask(self, seconds: float) -> None:
        request = UpdateRequest(self._after, seconds, self._connection.floor(), self._dropped())
        answer = unpacked(self._connection.post("/updates", framed(request)), UPDATE_ANSWER)
        for number, update in answer.updates:
            if number <= self._after:
                continue
            self._after = number
            with self._changed:
                reply = self._waiting.pop(update.name, None)
                if reply is None:
                    self._early[update.name] = update
            if reply is not None:
                reply.take(update)
        with self._changed:
            over = answer.draining and not self._waiting
        if over:
            raise SessionLostError(f"{self._connection.address}: the server stops, and takes no new calls")

    def _lose(self, error: Exception) -> None:
        lost = error if isinstance(error, TwinkleError) else SessionLostError(f"{type(error).__name__}: {error}")
        with self._changed:
            self._lost = lost
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for reply in waiting:
            reply.lose(lost)
