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
        rank: Its rank, at least 0; 0 where nothing else runs the same.
        world_size: Number of those that run the same, 1 where it is alone; None where only a rank is known, as inside
            of `use_rank`.
        worker: The worker that it is; None outside workers.
        by: What says so outside workers, for messages; empty where it is alone.
    """

    rank: int = 0
    world_size: int | None = 1
    worker: WorkerContext | None = None
    by: str = ""

    @property
    def alone(self) -> bool:
        """Whether nothing else runs the same."""
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
