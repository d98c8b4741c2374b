"""Whose rows are wanted here: one data rank's in a worker of a mesh, the global batch elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from twinkle_data.order.steps import Part
from twinkle_mesh import current_rank
from twinkle_remote import current_worker

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh


def part_here(device_mesh: DeviceMesh | None) -> Part:
    """The part of each batch that the running code takes.

    A worker, or a process that a launcher gave its RANK, takes its data rank's rows. The driver takes the
    global batch, of which a dispatch will give each data rank its slice.
    """
    if device_mesh is None:
        return Part()
    world = device_mesh.data_world_size
    if current_rank() is None and "RANK" not in os.environ:
        return Part(world)
    context = current_worker()
    if context.rank is not None and context.world_size == 1 < device_mesh.world_size:
        # One process stands for the whole component, as in "local" mode.
        return Part(world)
    return Part(world, device_mesh.data_rank())


def parts_of(device_mesh: DeviceMesh | None) -> list[Part]:
    """Every data rank's part, in data order."""
    world = 1 if device_mesh is None else device_mesh.data_world_size
    return [Part(world, data_rank) for data_rank in range(world)]
