"""The pending answer of a thread."""

from __future__ import annotations

import math
import threading
import time
from itertools import count
from typing import TYPE_CHECKING

from twinkle_remote.protocol.backend import Backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.messages import Outcome

_SLICE_SECONDS = 0.5  # a signal that comes just before a wait without a limit is not seen before its end
_MANY = 128  # replies
_MOMENT_SECONDS = 1e-5  # for each reply: several times what waiting for it once more costs
_LONGEST_MOMENT_SECONDS = 0.01
_numbers = count()
_changing = threading.Lock()  # of all replies: it is held for a moment


class ThreadReply:
    """The pending answer of a thread.

    Args:
        rank: Rank of the worker.
        on_loop: Its task runs on the worker's event loop.
        at: Name of the worker's group; None for a concurrent task.
        name: Class.method.

    Attributes:
        key: Id of its task on the event loop; empty for a task that needs the worker's turn.
        outcome: The outcome; None until it is there. It can be read without a lock.
    """

    __slots__ = ("_begun", "_bells", "_notified", "at", "key", "name", "on_loop", "outcome", "rank", "sent")

    def __init__(self, rank: int, *, on_loop: bool = False, at: str | None = None, name: str = "") -> None:
        self.rank = rank
        self.at = at
        self.key = f"{next(_numbers)}" if on_loop else ""
        self.name = name
        self.sent = 0
        self.on_loop = on_loop
        self.outcome: Outcome | None = None
        self._begun = False
        self._bells: tuple[threading.Lock, ...] = ()
        self._notified: tuple[Callable[[Outcome], None], ...] = ()

    def done(self) -> bool:
        """Whether the outcome has arrived."""
        return self.outcome is not None

    def begin(self) -> bool:
        """Take that its task begins; False if it has an outcome already, and the task is not to run."""
        with _changing:
            self._begun = self.outcome is None
            return self._begun

    def complete(self, outcome: Outcome, *, unless_begun: bool = False) -> bool:
        """Set the outcome, once; a later one is dropped, and so is one that comes too late for a task that began."""
        with _changing:
            if self.outcome is not None or (unless_begun and self._begun):
                return False
            self.outcome = outcome
            notified, self._notified = self._notified, ()
            for bell in self._bells:
                if bell.locked():
                    bell.release()
        for notify in notified:
            notify(outcome)
        return True

    def ring(self, bell: threading.Lock) -> None:
        """Have a lock released when the outcome is there; `_changing` is held."""
        self._bells += (bell,)

    def forget(self, bell: threading.Lock) -> None:
        """Leave a lock alone from now on; `_changing` is held."""
        self._bells = tuple([other for other in self._bells if other is not bell])

    def when_done(self, notify: Callable[[Outcome], None]) -> None:
        """Call `notify` once, in the thread that completes the reply; at once if it is done. It must not raise."""
        with _changing:
            outcome = self.outcome
            if outcome is None:
                self._notified += (notify,)
        if outcome is not None:
            notify(outcome)


class ThreadReplyBackend(Backend):
    """The part of a backend whose replies threads of this process complete: how these are waited for.

    Its workers' calls are known where they are made, and a forked process has none of its threads.
    """

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done."""
        return wait_for_any([reply for reply in replies if isinstance(reply, ThreadReply)], timeout)

    def when_done(self, reply: Reply, notify: Callable[[], None]) -> bool:
        """Call a function when a reply is done."""
        assert isinstance(reply, ThreadReply)
        reply.when_done(lambda _: notify())
        return True

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        assert isinstance(reply, ThreadReply) and reply.outcome is not None
        return reply.outcome


def wait_for_any(replies: Sequence[ThreadReply], timeout: float | None) -> Sequence[ThreadReply]:
    """Wait until at least one reply is done, and return those that are; empty when the time is over.

    Where many are waited for, a moment passes after the first: waiting again for all others after each one would cost
    the square of their number. Only locks of the interpreter's own are held here: a signal may come at any step, and
    one that came within a `Condition` or a `Future` would leave its lock taken for ever.
    """
    done = [reply for reply in replies if reply.outcome is not None]
    if timeout == 0.0 or (done and len(replies) < _MANY):
        return done
    began = time.monotonic()
    left = math.inf if timeout is None else timeout
    bell = threading.Lock()
    bell.acquire()
    try:
        with _changing:
            for reply in replies:
                reply.ring(bell)
        while left > 0.0 and all(map(_is_pending, replies)):  # Ctrl-C while a generator is closed would be lost
            bell.acquire(timeout=min(_SLICE_SECONDS, left))
            left = math.inf if timeout is None else began + timeout - time.monotonic()
    finally:
        with _changing:
            for reply in replies:
                reply.forget(bell)
    moment = min(len(replies) * _MOMENT_SECONDS, _LONGEST_MOMENT_SECONDS)
    if len(replies) >= _MANY and moment < left:
        time.sleep(moment)
    return [reply for reply in replies if reply.outcome is not None]


def _is_pending(reply: ThreadReply) -> bool:
    return reply.outcome is None
