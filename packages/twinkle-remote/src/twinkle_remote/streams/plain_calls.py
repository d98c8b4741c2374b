"""Calls of plain functions, in threads of this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from twinkle_remote.streams.stages import PlainStage


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
        self._calls: list[tuple[int, Future[Any]]] = []

    def begin(self, stage: PlainStage, chunk: int, given: Any) -> None:
        """Call a stage for a chunk."""
        self._threads = self._threads or ThreadPoolExecutor(self._at_once, "twinkle-stream-stage")
        future = self._threads.submit(stage.function, given)
        self._calls.append((chunk, future))
        future.add_done_callback(lambda _: self._ended())

    def take_ended(self) -> list[tuple[int, Future[Any]]]:
        """The chunks whose calls have ended, each once."""
        over = [call for call in self._calls if call[1].done()]
        for call in over:
            self._calls.remove(call)
        return over

    def close(self) -> None:
        """Begin no more; those that run are not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
