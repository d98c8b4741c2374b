"""Rank and number of the processes of a program that was started several times."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OTHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables of mpirun and srun: rank and number of processes. A batch script of Slurm is no step, and has no size."""


class LaunchedProcess:
    """One process of several.

    Attributes:
        rank: Rank of this process, at least 0.
        world_size: Number of processes; None where RANK is set without WORLD_SIZE.
        by: The source of these numbers, for messages.
    """

    __slots__ = ("by", "rank", "world_size")

    def __init__(self, rank: int, world_size: int | None, by: str) -> None:
        self.rank = rank
        self.world_size = world_size
        self.by = by


def launched() -> LaunchedProcess | None:
    """Return the place of this process; None where the program was started once.

    torch's default process group says it, or RANK and WORLD_SIZE, or without these the variables of mpirun and srun.

    Raises:
        ValueError: when the process group and the variables disagree, a variable is no rank or size, or WORLD_SIZE says
            that there are several processes and nothing says which one this is.
    """
    rank, size = _variable("RANK", 0), _variable("WORLD_SIZE", 1)
    if rank is not None and size is not None and rank >= size:
        raise ValueError(f"the environment's RANK={rank} is not a rank of WORLD_SIZE={size} processes: [0, {size - 1}]")
    group = _process_group()
    if group is not None:
        if (rank is not None and rank != group.rank) or (size is not None and size != group.world_size):
            raise ValueError(
                f"torch's process group says that this is rank {group.rank} of {group.world_size}, the environment "
                f"that it is RANK={rank} of WORLD_SIZE={size}; give init_process_group the launcher's rank and "
                "world_size, or unset RANK and WORLD_SIZE"
            )
        return group
    if rank is not None:
        return LaunchedProcess(
            rank, size, "the launcher" if size is None else f"the launcher started WORLD_SIZE={size}"
        )
    if size is not None and size > 1:
        raise ValueError(
            f"WORLD_SIZE={size} is set, but RANK is not: start the program with torchrun, or unset WORLD_SIZE"
        )
    return _by_others()


def _by_others() -> LaunchedProcess | None:
    """Return the place that mpirun or srun gave this process; None where they started one process, or none."""
    for rank_name, size_name in _OTHERS:
        rank, size = _variable(rank_name, 0), _variable(size_name, 1)
        if rank is not None and size is not None and 1 < size > rank:
            return LaunchedProcess(rank, size, f"the launcher started {size_name}={size}")
    return None


def _process_group() -> LaunchedProcess | None:
    """Return the place in torch's default process group; None where the program has none."""
    distributed: Any = sys.modules.get("torch.distributed")
    ready = getattr(distributed, "is_initialized", None)  # missing while torch is being imported, or built without it
    if ready is None or not ready():
        return None
    size = int(distributed.get_world_size())
    return LaunchedProcess(int(distributed.get_rank()), size, f"torch's process group has {size}")


def _variable(name: str, least: int) -> int | None:
    """Return the whole number in a variable of the environment; None where it is not set."""
    value = os.environ.get(name, "").strip()
    if not value:
        return None
    if not value.isdecimal() or int(value) < least:
        what = "a number of processes" if least else "a rank"
        raise ValueError(f"the environment's {name}={value!r} is not {what}; use a whole number from {least} on")
    return int(value)
