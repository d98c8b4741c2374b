"""Tasks that workers fetch from the gate of a caller, and run beside those that Ray gives them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_ray.objects.wire import Wire


class TaskBoxes:
    """One box for each worker; a part of the gate."""

    def __init__(self) -> None:
        self._boxes: dict[str, asyncio.Queue[tuple[str, Wire]]] = {}

    async def give_task(self, worker: str, key: str, wire: Wire) -> None:
        """Put a task into a worker's box.

        Args:
            worker: Id of the worker.
            key: Id of the task, under which the worker delivers its answer.
            wire: The task.
        """
        self._box(worker).put_nowait((key, wire))

    async def next_task(self, worker: str, seconds: float) -> tuple[str, Wire] | None:
        """The next task of a worker, after at most so many seconds; None without one."""
        try:
            return await asyncio.wait_for(self._box(worker).get(), seconds)
        except TimeoutError:
            return None

    def _box(self, worker: str) -> asyncio.Queue[tuple[str, Wire]]:
        if worker not in self._boxes:
            self._boxes[worker] = asyncio.Queue()
        return self._boxes[worker]
