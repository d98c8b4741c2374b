"""Reads updates of the calls in flight from the server, and keeps this client's lease."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from twinkle_http.client.connection import NotReachedError
from twinkle_http.wire.envelopes import UPDATE_ANSWER, UpdateRequest, message_of, unpacked
from twinkle_remote.backends.support import Inbox
from twinkle_remote.errors import SessionLostError, TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_http.client.connection import Connection
    from twinkle_http.client.replies import ServedReply
    from twinkle_http.wire.envelopes import CallUpdate

_POLL_SECONDS = 20.0


class UpdatePoller:
    """A thread that asks the server.

    Args:
        connection: To the server.
        beat: Seconds between two requests while no call is in flight.
        dropped: Takes the names of the results that are no longer used.
        restarted: Called with a group, and its ranks whose workers were restarted.
    """

    def __init__(
        self,
        connection: Connection,
        beat: float,
        dropped: Callable[[], list[str]],
        restarted: Callable[[str, Sequence[int]], None],
    ) -> None:
        self._connection = connection
        self._beat = beat
        self._dropped = dropped
        self._restarted = restarted
        self._waiting: dict[str, ServedReply] = {}
        self._early: dict[str, list[CallUpdate]] = {}
        self._changed = threading.Lock()
        self._bell: Inbox[None] = Inbox()  # a signal within a condition's wait or entry may leave its lock taken
        self._after = 0
        self._ended = False
        self._lost: TwinkleError | None = None
        self._thread = threading.Thread(target=self._run, name="twinkle-http-updates", daemon=True)
        self._thread.start()

    @property
    def read(self) -> int:
        """Number of the last update that was read, and taken in."""
        return self._after

    def check(self) -> None:
        """Check that the session is there.

        Raises:
            SessionLostError: It is lost. If the server was not reached, it is asked once more, because a restarted
                server says so.
        """
        lost = self._lost
        if isinstance(lost, NotReachedError):
            try:
                self._connection.post("/updates", message_of(UpdateRequest(self._after, 0.0, 0, [])), patience=0.0)
            except NotReachedError:
                pass
            except TwinkleError as error:
                lost = self._lost = error
        if lost is not None:
            raise type(lost)(str(lost))

    def expect(self, reply: ServedReply) -> None:
        """Wait for the updates of a call."""
        with self._changed:
            for update in self._early.pop(reply.name, ()):
                reply.take(update)
            if not reply.end.done():
                self._waiting[reply.name] = reply
            lost = self._lost
        self._bell.put(None)
        if lost is not None:
            reply.lose(lost)

    def end(self) -> None:
        """End the thread; it may be in the middle of a request."""
        with self._changed:
            self._ended = True
        self._bell.put(None)

    def _run(self) -> None:
        while True:
            if not self._waiting and not self._ended:
                self._bell.take(self._beat)
            if self._ended:
                return
            seconds = _POLL_SECONDS if self._waiting else 0.0
            try:
                self._ask(seconds)
            except Exception as error:  # no other thread would find out
                if not self._ended:
                    self._lose(error)
                return

    def _ask(self, seconds: float) -> None:
        request = UpdateRequest(self._after, seconds, self._connection.floor(), self._dropped())
        answer = unpacked(self._connection.post("/updates", message_of(request)), UPDATE_ANSWER)
        for number, update in answer.updates:
            if number > self._after:
                self._take(update)
                self._after = number
        with self._changed:
            over = answer.draining and not self._waiting
        if over:
            raise SessionLostError(f"{self._connection.address}: the server stops, and takes no new calls")

    def _take(self, update: CallUpdate) -> None:
        if update.line is not None:  # of a worker, with its label
            print(update.line, file=sys.stderr if update.is_error else sys.stdout, flush=True)
            return
        if update.restarted is not None:
            self._restarted(update.restarted[0], update.restarted[1:])
            return
        with self._changed:
            reply = self._waiting.get(update.name)
            if reply is None:  # its request is not answered yet
                self._early.setdefault(update.name, []).append(update)
                return
        reply.take(update)
        if reply.end.done():
            with self._changed:
                self._waiting.pop(reply.name, None)

    def _lose(self, error: Exception) -> None:
        lost = error if isinstance(error, TwinkleError) else SessionLostError(f"{type(error).__name__}: {error}")
        with self._changed:
            self._lost = lost
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for reply in waiting:
            reply.lose(lost)
