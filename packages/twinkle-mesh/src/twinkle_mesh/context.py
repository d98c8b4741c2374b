"""The rank of the running worker."""

from __future__ import annotations

from contextvars import ContextVar

from .launch import launched
from .rules.checks import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token
    from types import TracebackType

    from .launch import LaunchedProcess

_RANK: ContextVar[int | None] = ContextVar("twinkle_mesh_rank", default=None)
_others: Callable[[], int | None] | None = None


def current_rank() -> int | None:
    """Return the mesh rank of the running worker, which `use_rank` set, or None outside a worker."""
    rank = _RANK.get()
    return _others() if rank is None and _others is not None else rank


def ask_for_rank(function: Callable[[], int | None]) -> None:
    """Register a function that returns the rank of code without `use_rank`, such as a worker's helper threads.

    Args:
        function: Returns the rank, or None outside a worker.
    """
    global _others
    _others = function


class use_rank:  # noqa: N801 - a context manager that reads as a verb; contextlib would double the import time
    """Set the current rank for a block of code; None unsets it.

    The rank is kept in a ContextVar, so each thread and task has its own.
    """

    __slots__ = ("_rank", "_tokens")

    def __init__(self, rank: int | None) -> None:
        self._rank = None if rank is None else whole_number("rank", rank)
        self._tokens: list[Token[int | None]] = []

    def __enter__(self) -> int | None:
        self._tokens.append(_RANK.set(self._rank))
        return self._rank

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _RANK.reset(self._tokens.pop())


def running_rank(world_size: int, first_rank: Callable[[], int], highest: Callable[[], int]) -> int:
    """Return the rank of the running worker, else of this launched process, else the only rank of the mesh.

    Args:
        world_size: Ranks of the mesh.
        first_rank: Returns its first rank.
        highest: Returns its highest rank.

    Raises:
        ValueError: when there is none of these, no process was started for some ranks of the mesh, or torch's process
            group and RANK disagree.
    """
    rank = current_rank()
    if rank is not None:
        return rank
    place = launched()
    if place is not None and not (place.world_size == world_size == 1):
        _check_launched(place, highest())
        return place.rank
    if world_size == 1:
        return first_rank()
    raise ValueError(
        f"no current rank: the mesh has {world_size} ranks and this process is no worker of it; "
        "pass rank=, or call this inside a worker"
    )


def _check_launched(place: LaunchedProcess, highest: int) -> None:
    """Raise for a mesh with ranks that no process has; a mesh of some of the processes is right."""
    world = place.world_size
    if world is not None and highest >= world:
        raise ValueError(
            f"the mesh has ranks up to {highest} and {place.by} processes: the rows of "
            f"the ranks from {world} on would go to none of them. Use a mesh of ranks below {world}, start "
            f"{highest + 1} processes, or pass rank="
        )
