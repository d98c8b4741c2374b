"""Who the running code is among those that run the same: the one answer for all packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from twinkle_mesh import current_rank, launched
from twinkle_remote.context import current_worker, has_own_context
from twinkle_remote.errors import UnknownWorkerError

if TYPE_CHECKING:
    from twinkle_remote.context import WorkerContext


class Place(NamedTuple):
    """The place of the running code.

    Attributes:
        rank: Its rank, at least 0; 0 if only one process runs the program.
        world_size: Number of processes or workers that run the same code, at least 1; None if only a rank is known, as
            inside `use_rank`.
        worker: The worker that runs the code; None outside workers.
        by: The source of these numbers outside workers, for messages; empty if only one process runs the program.
    """

    rank: int = 0
    world_size: int | None = 1
    worker: WorkerContext | None = None
    by: str = ""

    @property
    def alone(self) -> bool:
        """Whether no other process or worker runs the same code."""
        return self.world_size == 1 or (self.worker is not None and self.worker.alone)


def current_place(maker: Place | None = None) -> Place:
    """The place of the running code: as a worker, in torch's default process group, or by RANK and WORLD_SIZE.

    Args:
        maker: The place in which an object was made that asks for its own; it counts in helper threads.

    Raises:
        UnknownWorkerError: In a thread whose owner is not known.
        ValueError: The process group and the variables disagree, or a variable is no rank or size.
    """
    if maker is not None and maker.worker is not None and not has_own_context():
        return maker
    try:
        worker = current_worker()
    except UnknownWorkerError:
        if maker is None:
            raise
        return maker
    if worker.rank is not None:
        return Place(worker.rank, worker.world_size, worker)
    rank = current_rank()
    if rank is not None:
        return Place(rank, None, None, "use_rank")
    process = launched()
    return Place() if process is None else Place(process.rank, process.world_size, None, process.by)
