"""The environment variables that a launcher sets: torchrun, or the Ray backend for its workers."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch.distributed as dist

_COUNTS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
_NODE_RANK = "TWINKLE_LOCAL_RANK"  # on workers with devices of their own LOCAL_RANK is the index of a device


class Launched(NamedTuple):
    """The ranks of one process of a launched program."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def launched() -> Launched:
    """Read the variables of the launcher.

    Raises:
        ValueError: A variable is missing; the message names it. Or one is not a number.
    """
    needed = (*_COUNTS, *(() if dist.is_initialized() else _ADDRESS))
    missing = [name for name in needed if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"the environment lacks {', '.join(missing)}, which torchrun sets: start the program with "
            "torchrun --nproc-per-node N program.py, or use Collective() in one process"
        )
    place = Launched(*(int(os.environ[name]) for name in _COUNTS))
    number = os.environ.get(_NODE_RANK, "")
    return place._replace(local_rank=int(number)) if number else place


def device_index(local_rank: int, visible: int) -> int:
    """The index of this process's GPU among those that it sees.

    A worker of the Ray backend sees its own alone, and takes the first. Other processes take the one of their local
    rank, or the only one.

    Args:
        local_rank: Rank among the processes of the node.
        visible: Number of GPUs that the process sees.

    Raises:
        ValueError: It sees fewer, and more than one.
    """
    if os.environ.get(_NODE_RANK):
        return int(os.environ.get("LOCAL_RANK", "0"))
    if visible == 1:
        return 0
    if local_rank >= visible:
        raise ValueError(
            f"local_rank={local_rank} has no GPU: this process sees {visible}; let each process see all GPUs of its "
            "node, or its own alone (CUDA_VISIBLE_DEVICES)"
        )
    return local_rank
