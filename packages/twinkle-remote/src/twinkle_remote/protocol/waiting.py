"""What a worker's task waits for, so that calls which wait for each other are found."""

from __future__ import annotations

from typing import NamedTuple


class WaitedWorker(NamedTuple):
    """A worker whose turn or answer is waited for.

    Attributes:
        group: Name of its group.
        rank: Its rank.
        call: Class.method that it has not answered.
    """

    group: str
    rank: int
    call: str


class Wait(NamedTuple):
    """A wait of the task that has a worker's turn; it pickles.

    Attributes:
        number: Another one for each wait of this worker.
        running: Class.method that runs there, or that waits for its arguments.
        ways: It goes on as soon as all workers of one of these have answered.
        can_raise: The wait itself can end with an error; one for arguments cannot.
    """

    number: int
    running: str
    ways: tuple[tuple[WaitedWorker, ...], ...]
    can_raise: bool = True
