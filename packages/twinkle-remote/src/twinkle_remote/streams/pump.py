"""The thread that takes in replies, so that work goes on while the loop does other things."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from twinkle_remote.context import context_here
from twinkle_remote.failures.frames import calls_are_from
from twinkle_remote.sessions.signals.flag import Flag
from twinkle_remote.sessions.signals.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.protocol.backend import Backend, Reply

T = TypeVar("T")

_LOOK_SECONDS = 0.25  # between two looks at everything: for deadlines, and for workers that cannot answer any more
_POLL_SECONDS = 0.01  # where the backend does not report that a reply is done


class PumpedEngine(Protocol):
    """An engine that a pump drives; each method is called under the pump's lock."""

    def step(self, done: Sequence[Reply]) -> None:
        """Take in replies that are done, and begin what can be begun."""

    def loop_ready(self) -> bool:
        """Whether there is something for the loop."""

    def waiting_for(self) -> Sequence[Reply]:
        """The replies that are not taken in."""

    def fail(self, error: BaseException) -> None:
        """A step failed; the loop is given the error."""


class _Change(Generic[T]):
    """A change that another thread asks for."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self.error: BaseException | None = None
        self.over = Flag()

    def run(self) -> None:
        """Make it."""
        try:
            self._made.append(self._make())
        except BaseException as error:
            self.error = error
        self.over.set()

    def value(self) -> T:
        """The value that came of it."""
        if self.error is not None:
            raise self.error
        return self._made[0]


class Pump:
    """Has an engine take in its replies and make its changes, in a thread of its own.

    No signal interrupts that thread: a change is made whole, also where Ctrl-C interrupts who has asked for it.

    Args:
        engine: What it drives.
        backend: Reports which replies are done.
        line: File and line of the user's code, for messages.

    Attributes:
        changed: Lock of the engine's state.
    """

    def __init__(self, engine: PumpedEngine, backend: Backend, line: str) -> None:
        self._line = line
        self.changed = threading.RLock()
        self._waiting: list[Flag] = []
        self._engine = engine
        self._backend = backend
        self._closed = False
        self._inbox: Inbox[Reply | _Change[Any] | None] = Inbox()
        self._seconds = _LOOK_SECONDS
        self._look_at = 0.0
        self._thread = threading.Thread(
            target=context_here().run, args=(self._run,), name="twinkle-stream", daemon=True
        )

    def start(self) -> None:
        """Begin, once."""
        if self._thread.ident is None:
            self._thread.start()

    def watch(self, replies: Sequence[Reply]) -> None:
        """Take these in when they are done."""
        for reply in replies:
            if not self._backend.when_done(reply, partial(self._inbox.put, reply)):
                self._seconds = _POLL_SECONDS

    def wake(self) -> None:
        """There is something to begin."""
        self._inbox.put(None)

    def run(self, make: Callable[[], T]) -> T:
        """Make a change in the pump's thread, after those that were asked for before it; returns what comes of it.

        It begins the thread. After its end, changes are made in the caller's.
        """
        self.start()
        change = _Change(make)
        self._inbox.put(change)
        while not change.over.wait(_LOOK_SECONDS):
            if not self._thread.is_alive():
                with self.changed:
                    for left in self._inbox.take(0.0):
                        if isinstance(left, _Change):
                            left.run()
                break
        return change.value()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._inbox.put(None)

    def next_step(self) -> Flag:
        """The flag that the next step with something for the loop sets; the lock is held, and not while waiting."""
        flag = Flag()
        self._waiting.append(flag)
        return flag

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        calls_are_from(self._line)
        while not self._closed:
            taken = self._inbox.take(self._seconds)
            done = [one for one in taken if one is not None and not isinstance(one, _Change)]
            with self.changed:
                for one in taken:
                    if isinstance(one, _Change):
                        one.run()
                if self._closed:
                    return
                try:
                    self._engine.step([*done, *self._found()])
                except BaseException as error:
                    self._engine.fail(error)
                    self._closed = True
                if self._closed or self._engine.loop_ready():
                    waiting, self._waiting = self._waiting, []
                    for flag in waiting:
                        flag.set()

    def _found(self) -> Sequence[Reply]:
        """Replies that are done, or that can no longer arrive, looked for now and then."""
        now = time.monotonic()
        if now < self._look_at:
            return ()
        self._look_at = now + self._seconds
        waiting = self._engine.waiting_for()
        return self._backend.wait(waiting, 0.0) if waiting else ()
