"""The waits of the tasks of one worker at this moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.protocol.waiting import WorkerWaits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.waiting import Wait
    from twinkle_remote.worker.loop_tasks import LoopTasks


class WaitingTasks:
    """The waits of one worker's tasks.

    Args:
        info: Identity of the worker.
        loop: Its event loop.

    Attributes:
        info: As given.
        loop: As given.
    """

    def __init__(self, info: WorkerInfo, loop: LoopTasks) -> None:
        self.info = info
        self.loop = loop
        self._turn_wait: Wait | None = None
        self._loop_wait: Wait | None = None
        self._task_waits: tuple[Mapping[str, Wait | None], tuple[str, ...]] = ({}, ())

    @property
    def waits(self) -> WorkerWaits:
        """The waits of its tasks."""
        return WorkerWaits(self._turn_wait, self._loop_wait, *self._task_waits)

    def set_wait(self, wait: Wait | None, *, holds_loop: bool = False) -> None:
        """Take what the task that has its turn, or holds up its event loop, waits for; None if it goes on."""
        if holds_loop:
            self._loop_wait = wait
        else:
            self._turn_wait = wait
        self.show_waits()

    def refresh_waits(self) -> None:
        """Read again what the tasks of its event loop wait for."""

        def take(tasks: Mapping[str, Wait | None], ended: tuple[str, ...]) -> None:
            self._task_waits = tasks, ended
            self.show_waits()

        self.loop.waits(self.info, take)

    def show_waits(self) -> None:
        """The waits have changed: a worker whose process others cannot look into shows them; the default does not."""
