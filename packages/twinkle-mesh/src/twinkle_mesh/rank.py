"""The rank of the running code: of a worker, or of one process of several that a launcher started."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from .mesh import DeviceMesh

_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables of mpirun and srun: rank and number of processes. A batch script of Slurm is no step, and has no size."""
_RANK: ContextVar[int | None] = ContextVar("twinkle_mesh_rank", default=None)
_others: Callable[[], int | None] | None = None


class use_rank:  # noqa: N801  a verb; contextlib's writes on exceptions, which frozen ones refuse
    """Set the rank of the running worker for a block of code of this thread or task; None unsets it."""

    def __init__(self, rank: int | None) -> None:
        self._rank = rank

    def __enter__(self) -> int | None:
        self._token = _RANK.set(self._rank)
        return self._rank

    def __exit__(self, *error: object) -> None:
        _RANK.reset(self._token)


def current_rank() -> int | None:
    """Return the mesh rank of the running worker, which `use_rank` set, or None outside a worker."""
    rank = _RANK.get()
    return _others() if rank is None and _others is not None else rank


def ask_for_rank(function: Callable[[], int | None]) -> None:
    """Register what gives the rank, or None, of code without `use_rank`, such as a worker's helper threads."""
    global _others
    _others = function


class LaunchedProcess(NamedTuple):
    """One process of several; `by` says where the numbers come from. The size is None where only RANK is set."""

    rank: int
    world_size: int | None
    by: str


def launched() -> LaunchedProcess | None:
    """Return the place of this process by torch's process group, RANK and WORLD_SIZE, or mpirun's and srun's variables.

    Raises:
        ValueError: The process group and the variables disagree, a variable is no rank or size, or WORLD_SIZE says
            that there are several processes and nothing says which one this is.
    """
    rank, size = _variable("RANK", 0), _variable("WORLD_SIZE", 1)
    if rank is not None and size is not None and rank >= size:
        raise ValueError(f"the environment's RANK={rank} is not a rank of WORLD_SIZE={size} processes: [0, {size - 1}]")
    torch_distributed: Any = sys.modules.get("torch.distributed")
    is_initialized = getattr(torch_distributed, "is_initialized", None)  # missing while torch is being imported
    if is_initialized is not None and is_initialized():
        own, world = int(torch_distributed.get_rank()), int(torch_distributed.get_world_size())
        if rank not in (None, own) or size not in (None, world):
            raise ValueError(
                f"torch's process group says that this is rank {own} of {world}, the environment that it is "
                f"RANK={rank} of WORLD_SIZE={size}; give init_process_group the launcher's rank and world_size, or "
                "unset RANK and WORLD_SIZE"
            )
        return LaunchedProcess(own, world, f"torch's process group has {world}")
    if rank is not None:
        return LaunchedProcess(rank, size, "the launcher" + (f" started WORLD_SIZE={size}" if size is not None else ""))
    if size is not None and size > 1:
        raise ValueError(
            f"WORLD_SIZE={size} is set, but RANK is not: start the program with torchrun, or unset WORLD_SIZE"
        )
    for rank_name, size_name in _LAUNCHERS:
        rank, size = _variable(rank_name, 0), _variable(size_name, 1)
        if rank is not None and size is not None and 1 < size > rank:
            return LaunchedProcess(rank, size, f"the launcher started {size_name}={size}")
    return None


def running_rank(mesh: DeviceMesh) -> int:
    """Return the rank of the running worker, else of this launched process, else the only rank of a mesh.

    Raises:
        ValueError: When there is none of these, or no process was started for some ranks of the mesh.
    """
    rank = current_rank()
    if rank is not None:
        return rank
    place, ranks = launched(), mesh.world_size
    if ranks == 1 and (place is None or place.world_size == 1):
        return mesh.ranks[0]
    if place is None:
        raise ValueError(
            f"no current rank: the mesh has {ranks} ranks and this process is no worker of it; pass rank=, or call "
            "this inside a worker"
        )
    highest = max(mesh.ranks)
    if place.world_size is not None and highest >= place.world_size:
        raise ValueError(
            f"the mesh has ranks up to {highest} and {place.by} processes: some rows would go to none of them. Use a "
            f"mesh of ranks below {place.world_size}, start {highest + 1} processes, or pass rank="
        )
    return place.rank


def _variable(name: str, least: int) -> int | None:
    """Return the whole number in a variable of the environment; None where it is not set."""
    value = os.environ.get(name, "").strip()
    if value and (not value.isdecimal() or int(value) < least):
        what = "a number of processes" if least else "a rank"
        raise ValueError(f"the environment's {name}={value!r} is not {what}; use a whole number from {least} on")
    return int(value) if value else None
