"""Slow calls of a synchronous stream: a call of a stage that takes long is named once."""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote.call.lazy_values.lazy import Lazy, hand_over
from twinkle_remote.failures.frames import user_stack
from twinkle_remote.streams.chunks.slow_chunks import SlowChunks
from twinkle_remote.streams.schedule.decisions import Assignment, StageCall

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("twinkle.remote")
_LOOKS = 4  # in the time of the patience
_LONGEST = 1.0  # seconds between two looks


class _Open(NamedTuple):
    """A call that is not over.

    Attributes:
        work: Its stage and rows.
        rows: Its rows, for messages.
        thread: The thread that makes it.
        result: Its lazy result; None while it runs in that thread.
    """

    work: StageCall
    rows: str
    thread: int
    result: Lazy[Any] | None


class SlowCalls:
    """Looks now and then at the calls of the stages; the first one that is not over is at work, others wait behind it.

    Args:
        patience: Seconds after which a call is named; None for never.
        names: The stages.
    """

    def __init__(self, patience: float | None, names: Sequence[str]) -> None:
        self._patience = patience
        self._names = names
        self._slow = SlowChunks(patience, [0] * len(names))
        self._open: dict[int, _Open] = {}
        self._calls = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, stage: int, first: int, count: int, rows: str) -> int:
        """A call is made, in this thread.

        Args:
            stage: Index of the stage.
            first: Position of its first row.
            count: Its rows.
            rows: The same for messages.

        Returns:
            Its number.
        """
        with self._lock:
            self._calls += 1
            work = StageCall(stage, 0, (Assignment(self._calls, stage, 0, first, count, 0),))
            self._slow.begin(work)
            self._open[work.number] = _Open(work, rows, threading.get_ident(), None)
            if self._thread is None and self._patience is not None:
                self._thread = threading.Thread(target=self._look_on, name="twinkle-stream-slow", daemon=True)
                self._thread.start()
            return work.number

    def returned(self, call: int, result: Any) -> None:
        """It has returned: a lazy result is at work until it is done."""
        with self._lock:
            if isinstance(result, Lazy) and not result.done() and self._patience is not None:
                self._open[call] = self._open[call]._replace(result=result)
            else:
                self._slow.end(self._open.pop(call).work)

    def failed(self, call: int) -> None:
        """It has raised."""
        self.returned(call, None)

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _look_on(self) -> None:
        assert self._patience is not None, "there is no thread without it"
        while not self._closed.wait(min(_LONGEST, self._patience / _LOOKS)):
            with self._lock:
                for one in [one for one in self._open.values() if one.result is not None and one.result.done()]:
                    self._slow.end(self._open.pop(one.work.number).work)
                late = [(self._open[work.number], seconds) for work, seconds in self._slow.overdue()]
            for one, seconds in late:
                name = self._names[one.work.stage]
                _log.warning("%s has been at %s for %.0f s:\n%s", name, one.rows, seconds, _stack(one, seconds))


def _stack(one: _Open, seconds: float) -> str:
    """The text of what a call does."""
    if one.result is None:
        frame = sys._current_frames().get(one.thread)
        return "" if frame is None else user_stack(frame)
    calls = dict.fromkeys(call for call, _ in hand_over(one.result, 0)[0])
    return "\n".join(str(call.lateness(round(seconds, 1))) for call in calls if not call.done())
