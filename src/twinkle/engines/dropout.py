"""Dropout of a training pass: on or off, and drawn alike by ranks that hold the same activations."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import ProcessGroup


@contextmanager
def drawing(model: Any, on: bool, group: ProcessGroup, device: torch.device) -> Iterator[None]:
    """Passes that draw in the layers that draw, such as dropout, or do not; all ranks of the group call this.

    Args:
        model: The model.
        on: Whether its layers draw.
        group: Ranks that draw alike, whatever their generators; these go on by one number in each.
        device: Where the model is.
    """
    model.train(on)
    if not on or dist.get_world_size(group) == 1:
        yield
        return
    seed = torch.randint(2**62, (1,)).to(device)
    dist.broadcast(seed, group=group, group_src=0)
    with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type=device.type):
        torch.random.manual_seed(int(seed))
        yield
