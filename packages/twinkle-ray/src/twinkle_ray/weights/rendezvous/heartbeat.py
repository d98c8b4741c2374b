"""Heartbeats: every process sends them during a step, and the controller finds the processes without them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from threading import Event, Lock, Thread, current_thread
from typing import TYPE_CHECKING

from twinkle_ray.weights.rendezvous.session import POLL_SECONDS, Phase, Session, SessionStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_SHORT_SECONDS = 0.02  # a phase that is over sooner needs no sign of life


class Heartbeat:
    """A thread that sends signs of life of this process during phases, and notices an abort of the session at once.

    Args:
        session: The session; the thread has its own connection.
        rank: Of this process.
    """

    def __init__(self, session: Session, rank: int) -> None:
        self.reason: str | None = None
        self._session_store = SessionStore(session)
        self._rank = rank
        self._on_abort: Callable[[], None] | None = None
        self._phases: set[Phase] = set()
        self._lock = Lock()
        self._busy, self._over = Event(), Event()
        self._thread = Thread(target=self._run, name="twinkle-weights-heartbeat", daemon=True)
        self._thread.start()

    def guard(self, on_abort: Callable[[], None]) -> None:
        """Set the function that the thread calls when the session is aborted."""
        self._on_abort = on_abort
        if self.reason is not None:
            on_abort()

    @contextmanager
    def during(self, phase: Phase, session_store: SessionStore, *, begins: bool = False) -> Iterator[None]:
        """Send signs of life during a phase.

        Args:
            phase: The phase.
            session_store: The caller's own connection.
            begins: Send one at once: the controller counts its silence only from the first one on.
        """
        if begins:
            session_store.beat(self._rank, phase, "0")
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
                session_store.beat(self._rank, phase, "done")

    def close(self) -> None:
        """End the thread: if it still runs when the process ends, C++ may abort the process."""
        self._over.set()
        self._busy.set()
        if self._thread is not current_thread():
            self._thread.join(5 * POLL_SECONDS)

    def _run(self) -> None:
        count = 0
        try:
            while self.reason is None:
                self._busy.wait()
                if self._over.wait(_SHORT_SECONDS):
                    self._session_store.close()
                    return
                if not self._busy.is_set():
                    continue
                count += 1
                with self._lock:
                    for phase in self._phases:
                        self._session_store.beat(self._rank, phase, str(count))
                self.reason = self._session_store.aborted(POLL_SECONDS)
        except RuntimeError as error:
            self.reason = f"the controller's store is gone ({error})"
        if self._on_abort is not None and not self._over.is_set():
            self._on_abort()


class LivenessMonitor:
    """Finds the processes without a sign of life in a phase.

    Args:
        session_store: The session's part of the store.
        phase: The phase.
        processes: Those that take part in it.
        silence: A process without a sign of life for as many seconds is silent.
        once_begun: A process without any sign of life has not begun: it may work for as long as it wants before.
    """

    def __init__(
        self,
        session_store: SessionStore,
        phase: Phase,
        processes: Sequence[int],
        silence: float,
        *,
        once_begun: bool = False,
    ) -> None:
        self._session_store, self._phase, self._silence = session_store, phase, silence
        self._once_begun = once_begun
        self._looked = time.monotonic()
        self._seen = dict.fromkeys(processes, ("", self._looked))

    def silent(self) -> list[int]:
        """The silent processes; reads the store every 0.2 s at most."""
        now = time.monotonic()
        if now - self._looked < POLL_SECONDS:
            return []
        self._looked = now
        beats = self._session_store.beats(self._phase, self._seen)
        for rank, (last, _) in list(self._seen.items()):
            value = beats.get(rank, "")
            if value != last and value.startswith(f"{self._phase.attempt} "):
                self._seen[rank] = (value, now)
        return [
            rank
            for rank, (value, since) in self._seen.items()
            if now - since > self._silence
            and value != f"{self._phase.attempt} done"
            and (value or not self._once_begun)
        ]
