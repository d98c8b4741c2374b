"""Calls of plain functions, in threads of this process."""

from __future__ import annotations

import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy_values.lazy import Lazy, calls_of
from twinkle_remote.failures.frames import user_stack

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from twinkle_remote.streams.schedule.decisions import StageCall
    from twinkle_remote.streams.stages import PlainStage

_log = logging.getLogger("twinkle.remote")


class PlainCalls:
    """The calls of plain stages that are not taken in.

    Args:
        at_once: Calls at a time.
        ended: Called when one has ended, in its thread.
    """

    def __init__(self, at_once: int, ended: Callable[[], None]) -> None:
        self._at_once = at_once
        self._ended = ended
        self._threads: ThreadPoolExecutor | None = None
        self._calls: list[tuple[StageCall, Future[Any]]] = []
        self._threads_of: dict[int, int] = {}
        self._warned: set[str] = set()

    def begin(self, stage: PlainStage, work: StageCall, given: Any) -> None:
        """Call a stage."""
        self._threads = self._threads or ThreadPoolExecutor(self._at_once, "twinkle-stream-stage")
        future = self._threads.submit(self._run, stage, work.number, given)
        self._calls.append((work, future))
        future.add_done_callback(lambda _: self._ended())

    def _run(self, stage: PlainStage, number: int, given: Any) -> Any:
        self._threads_of[number] = threading.get_ident()
        made = stage.run(given)
        if not isinstance(made, Lazy):
            return made
        self._warn(stage, given, made)
        return made.result()  # it may pass on its rows, or call a remote function

    def _warn(self, stage: PlainStage, given: Any, made: Lazy[Any]) -> None:
        """Tell once of a stage that calls a remote function, whose rows come here and not to the next stage."""
        known = calls_of(given) if isinstance(given, Lazy) else ()
        own = next((call for call in calls_of(made) if call not in known), None)
        if own is not None and stage.name not in self._warned:
            self._warned.add(stage.name)
            _log.warning(
                "the stage %s calls %s, and its rows come to this process, because it is a plain function: use %s "
                "itself as the stage, or functools.partial of it with its other arguments",
                *(stage.name, own.name, own.name),
            )

    def stack(self, number: int) -> str:
        """The stack of the thread that makes the call with a number, as text; empty if none does."""
        frame = sys._current_frames().get(self._threads_of.get(number, 0))
        return user_stack(frame) if frame is not None else ""

    def take_ended(self) -> list[tuple[StageCall, Future[Any]]]:
        """The calls that have ended, each once."""
        over = [call for call in self._calls if call[1].done()]
        for call in over:
            self._calls.remove(call)
            self._threads_of.pop(call[0].number, None)
        return over

    def close(self) -> None:
        """Begin no more; those that run are not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
