"""The rank of the running worker."""

from __future__ import annotations

import os
from contextvars import ContextVar

from .rules.checks import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token
    from types import TracebackType

_RANK: ContextVar[int | None] = ContextVar("twinkle_mesh_rank", default=None)


def current_rank() -> int | None:
    """Return the mesh rank that `use_rank` set for the running code, or None outside a worker."""
    return _RANK.get()


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
    """Return the rank of the running worker: from `use_rank`, else from RANK, else the only rank of the mesh.

    Args:
        world_size: Ranks of the mesh.
        first_rank: Returns its first rank.
        highest: Returns its highest rank.

    Raises:
        ValueError: when there is none of these, or the launcher started no process for some ranks of the mesh.
    """
    rank = _RANK.get()
    if rank is not None:
        return rank
    launched = os.environ.get("RANK")
    if launched is not None:
        if not launched.strip().isdecimal():
            raise ValueError(f"the environment's RANK={launched!r} is not a rank; pass rank= instead")
        _check_launched(highest())
        return int(launched)
    if world_size == 1:
        return first_rank()
    raise ValueError(
        f"no current rank: the mesh has {world_size} ranks and this process is no worker of it; "
        "pass rank=, or call this inside a worker"
    )


def _check_launched(highest: int) -> None:
    """Raise for a mesh with ranks that no process of the launcher has; a mesh of some of the processes is right."""
    world = os.environ.get("WORLD_SIZE", "").strip()
    if world.isdecimal() and highest >= int(world):
        raise ValueError(
            f"the mesh has ranks up to {highest} and the launcher started WORLD_SIZE={world} processes: the rows of "
            f"the ranks from {world} on would go to none of them. Use a mesh of ranks below {world}, start "
            f"{highest + 1} processes, or pass rank="
        )
