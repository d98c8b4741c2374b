"""Waits of a worker's tasks, by which calls that wait for each other are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class WaitedWorker(NamedTuple):
    """A worker whose turn or answer is waited for.

    Attributes:
        group: Name of its group.
        rank: Its rank.
        call: Class.method that it has not answered.
        key: Id of the task on the worker's event loop; empty for a task that needs the worker's turn.
    """

    group: str
    rank: int
    call: str
    key: str = ""


class Wait(NamedTuple):
    """A wait of one task; it pickles.

    Attributes:
        number: Another one for each wait of this worker.
        running: Class.method that runs there, or that waits for its arguments or for a place.
        ways: It goes on as soon as all workers of one of these have answered.
        can_raise: The wait itself can end with an error; one for arguments or for a place cannot.
    """

    number: int
    running: str
    ways: tuple[tuple[WaitedWorker, ...], ...]
    can_raise: bool = True


class WorkerWaits(NamedTuple):
    """The waits of the tasks of one worker; it pickles.

    Attributes:
        turn: The wait of the task that has the worker's turn; None if it goes on, or if there is none.
        loop: The wait of a task that holds up the whole event loop; None without one.
        tasks: The wait of each task that has begun on the event loop; None for one that goes on.
        ended: The latest tasks that have ended there. A task that is in none of both has not begun.
    """

    turn: Wait | None = None
    loop: Wait | None = None
    tasks: Mapping[str, Wait | None] = {}
    ended: tuple[str, ...] = ()

    def of(self, key: str) -> Wait | None:
        """The wait of a task, by its key; a task that has not begun waits for the turn, then for the loop."""
        if not key:
            return self.turn
        if key in self.tasks:
            return self.loop or self.tasks[key]
        return None if key in self.ended else self.turn or self.loop
