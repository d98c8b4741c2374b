"""Signs of life: every process shows them during a step, and the controller sees which are missing."""

from __future__ import annotations

import time
from contextlib import contextmanager
from threading import Event, Lock, Thread, current_thread
from typing import TYPE_CHECKING

from twinkle_ray.weights.rendezvous.session import POLL_SECONDS, Phase, Session, SessionStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Heartbeat:
    """A thread that shows this process alive during phases, and learns at once that the generation was aborted.

    Args:
        session: The generation; the thread has a connection of its own.
        rank: Of this process.
    """

    def __init__(self, session: Session, rank: int) -> None:
        self.reason: str | None = None
        self._board = SessionStore(session)
        self._rank = rank
        self._on_abort: Callable[[], None] | None = None
        self._phases: set[Phase] = set()
        self._lock = Lock()
        self._busy, self._over = Event(), Event()
        self._thread = Thread(target=self._run, name="twinkle-weights-watch", daemon=True)
        self._thread.start()

    def guard(self, on_abort: Callable[[], None]) -> None:
        """What to call, from the thread, when the generation is aborted."""
        self._on_abort = on_abort
        if self.reason is not None:
            on_abort()

    @contextmanager
    def during(self, phase: Phase, board: SessionStore) -> Iterator[None]:
        """Show life in a phase.

        Args:
            phase: Which one.
            board: The caller's own connection.
        """
        board.beat(self._rank, phase, "0")
        with self._lock:
            self._phases.add(phase)
        self._busy.set()
        try:
            yield
        finally:
            with self._lock:
                self._phases.discard(phase)
                if not self._phases:
                    self._busy.clear()
                board.beat(self._rank, phase, "done")

    def close(self) -> None:
        """End the thread: one that is still at work when the process ends may take it down from within C++."""
        self._over.set()
        self._busy.set()
        if self._thread is not current_thread():
            self._thread.join(5 * POLL_SECONDS)

    def _run(self) -> None:
        count = 0
        try:
            while self.reason is None:
                self._busy.wait()
                if self._over.is_set():
                    self._board.close()
                    return
                count += 1
                with self._lock:
                    for phase in self._phases:
                        self._board.beat(self._rank, phase, str(count))
                self.reason = self._board.aborted(POLL_SECONDS)
        except RuntimeError as error:
            self.reason = f"the controller's store is gone ({error})"
        if self._on_abort is not None and not self._over.is_set():
            self._on_abort()


class LivenessMonitor:
    """Tells the controller which processes are silent in a phase.

    Args:
        board: The generation's part of the store.
        phase: Which one.
        processes: Those that take part in it.
        silence: Seconds without a sign of life that are too many.
    """

    def __init__(self, board: SessionStore, phase: Phase, processes: Sequence[int], silence: float) -> None:
        self._board, self._phase, self._silence = board, phase, silence
        self._looked = time.monotonic()
        self._seen = dict.fromkeys(processes, ("", self._looked))

    def silent(self) -> list[int]:
        """Processes that have been silent for too long; asks the store every 0.2 s at most."""
        now = time.monotonic()
        if now - self._looked < POLL_SECONDS:
            return []
        self._looked = now
        beats = self._board.beats(self._phase, self._seen)
        for rank, (last, _) in list(self._seen.items()):
            value = beats.get(rank, "")
            if value != last and value.startswith(f"{self._phase.attempt} "):
                self._seen[rank] = (value, now)
        return [
            rank
            for rank, (value, since) in self._seen.items()
            if now - since > self._silence and value != f"{self._phase.attempt} done"
        ]
