"""The blocks of a DTensor, as boxes that follow from its mesh and placements."""

from __future__ import annotations

import sys
from itertools import product
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

import torch

from twinkle_ray.torch_internals import strided_split
from twinkle_ray.weights.shards.box import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

    from twinkle_ray.weights.shards.specs import Piece


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Whether a value is a DTensor; where nobody has imported them, which takes 0.6 s, there are none."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(value, kind)


def placed_boxes(
    shape: Sequence[int], mesh_shape: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> list[Box]:
    """The blocks that one coordinate of a torch mesh holds, in the order of its local tensor.

    One block for Replicate and Shard; several if a _StridedShard gives a rank separate rows. torch's own
    `compute_local_shape_and_global_offset` returns the first offset only.

    Raises:
        ValueError: For a placement without values, such as Partial.
    """
    from torch.distributed.tensor.placement_types import Replicate
    from torch.distributed.tensor.placement_types import Shard as ShardPlacement

    runs = [[(0, size)] for size in shape]
    for size, where, placement in zip(mesh_shape, coordinate, placements, strict=True):
        strided = strided_split(placement)
        if strided is not None:
            dim, split = strided
            parts = [part for start in range(split) for part in _part(runs[dim], split, start, size, where)]
            runs[dim] = _joined(parts)
        elif isinstance(placement, ShardPlacement):
            runs[placement.dim] = _chunk(runs[placement.dim], size, where)
        elif not isinstance(placement, Replicate):
            raise ValueError(f"a weight needs Shard or Replicate placements, got {placement!r}: redistribute it first")
    return [Box(tuple(a for a, _ in sides), tuple(b - a for a, b in sides)) for sides in product(*runs)]


Runs: TypeAlias = list[tuple[int, int]]


def _chunk(runs: Runs, size: int, index: int) -> Runs:
    """Part `index` of `size` of these rows, by torch.chunk's rule: ceil(n / size) each, the last ones short."""
    length = sum(stop - start for start, stop in runs)
    step = -(-length // size)
    low, high = min(step * index, length), min(step * (index + 1), length)
    taken: Runs = []
    position = 0
    for start, stop in runs:
        a, b = max(low, position), min(high, position + stop - start)
        if a < b:
            taken.append((start + a - position, start + b - position))
        position += stop - start
    return taken


def _part(runs: Runs, split: int, part: int, size: int, index: int) -> Runs:
    return _chunk(_chunk(runs, split, part), size, index)


def _joined(runs: Runs) -> Runs:
    joined: Runs = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def dtensor_pieces(name: str, weight: DTensor) -> list[Piece]:
    """The local blocks of a DTensor, each with its box.

    Raises:
        ValueError: If it has a placement without values, or its local tensor does not fit its placements.
    """
    mesh, shape = weight.device_mesh, tuple(weight.shape)
    with torch.no_grad():
        local: Tensor = weight.to_local().detach()
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return [(Box((0,) * len(shape), (0,) * len(shape)), local.new_empty((0,) * len(shape)))]
    try:
        boxes = placed_boxes(shape, tuple(mesh.shape), coordinate, weight.placements)
    except ValueError as error:
        raise ValueError(f"weight {name!r}: {error}") from None
    pieces: list[Piece] = []
    if sum(box.volume for box in boxes) != local.numel():
        raise ValueError(
            f"weight {name!r} holds {tuple(local.shape)} locally, where its placements {weight.placements} on a mesh "
            f"of shape {tuple(mesh.shape)} give {[str(box) for box in boxes]} of {shape}: is it padded?"
        )
    if not boxes:
        return [(Box((0,) * len(shape), (0,) * len(shape)), local.new_empty((0,) * len(shape)))]
    starts = [dict[int, int]() for _ in shape]
    for dim, start in enumerate(starts):
        position = 0
        for offset, size in sorted({(box.offset[dim], box.shape[dim]) for box in boxes}):
            start[offset] = position
            position += size
    for box in boxes:
        index = tuple(slice(start[o], start[o] + s) for start, o, s in zip(starts, box.offset, box.shape, strict=True))
        pieces.append((box, local[index]))
    return pieces
