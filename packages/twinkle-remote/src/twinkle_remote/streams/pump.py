"""The threads that wait for replies, so that work goes on while the loop does other things."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from twinkle_remote.failures.frames import calls_are_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.backend import Reply

_WAIT_SECONDS = 0.1
_IDLE_SECONDS = 0.5
_THREADS = 2


class PumpedEngine(Protocol):
    """What a pump drives; each method is called under the pump's lock, apart from `wait`."""

    def step(self, done: Sequence[Reply]) -> None:
        """Take in replies that are done, and begin what can be begun."""

    def waiting_for(self) -> Sequence[Reply]:
        """The replies to wait for."""

    def wait(self, replies: Sequence[Reply], seconds: float) -> Sequence[Reply]:
        """Wait until one is done, for so many seconds at most; called without the lock."""

    def broke(self, error: BaseException) -> None:
        """A step failed; the loop is given the error."""


class Pump:
    """Waits for an engine's replies in threads of its own.

    A wait for replies cannot be ended from outside. So when there is something new to wait for while one thread waits,
    the other thread takes over, with all replies.

    Args:
        engine: What it drives.
        line: File and line of the user's code, for messages.
    """

    def __init__(self, engine: PumpedEngine, line: str) -> None:
        self._line = line
        self.changed = threading.Condition()
        self._engine = engine
        self._closed = False
        self._dirty = True
        self._leader = 0
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"twinkle-stream-{number}", daemon=True)
            for number in range(_THREADS)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """There is something to begin; called under the lock."""
        self._dirty = True
        self.changed.notify_all()

    def close(self) -> None:
        """End the threads; a thread that waits ends soon after."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the end of the threads.

        Args:
            seconds: For each of them.
        """
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(seconds)

    def _run(self, number: int) -> None:
        calls_are_from(self._line)
        done: Sequence[Reply] = ()
        while True:
            with self.changed:
                if self._closed:
                    return
                if not done and not self._dirty and self._leader != number:
                    self.changed.wait(_IDLE_SECONDS)
                    continue
                if self._dirty:
                    self._leader = number
                self._dirty = False
                replies = self._step(done)
                done = ()
                if self._leader != number:
                    continue
                if not replies:
                    self.changed.wait(_IDLE_SECONDS)
                    continue
            done = self._wait(replies)

    def _step(self, done: Sequence[Reply]) -> Sequence[Reply]:
        try:
            self._engine.step(done)
            return self._engine.waiting_for()
        except BaseException as error:
            self._engine.broke(error)
            self._closed = True
            return ()
        finally:
            self.changed.notify_all()

    def _wait(self, replies: Sequence[Reply]) -> Sequence[Reply]:
        try:
            return self._engine.wait(replies, _WAIT_SECONDS)
        except BaseException as error:
            with self.changed:
                self._engine.broke(error)
                self._closed = True
                self.changed.notify_all()
            return ()
