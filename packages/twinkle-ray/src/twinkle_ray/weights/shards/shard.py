"""What a rank holds of each tensor: from the user's tensors, DTensors and Shards to boxes and specs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Replicate, _StridedShard
from torch.distributed.tensor.placement_types import Shard as ShardPlacement

from twinkle_ray.weights.shards.box import Box
from twinkle_ray.weights.shards.memory import overlaps


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A block of a larger tensor, said by hand: `tensor` sits at `offset` of a tensor of `global_shape`.

    Args:
        tensor: The local block, any strides; a view of a fused parameter is fine, and is written in place.
        global_shape: Shape of the whole tensor.
        offset: Where the block starts, one index for each dimension.

    Raises:
        ValueError: If the block does not lie inside the global shape.
    """

    tensor: Tensor
    global_shape: Sequence[int]
    offset: Sequence[int]

    def __post_init__(self) -> None:
        shape, whole, offset = tuple(self.tensor.shape), tuple(self.global_shape), tuple(self.offset)
        if not len(shape) == len(whole) == len(offset):
            raise ValueError(
                f"a Shard has as many dimensions as its global tensor: got shape {shape}, "
                f"global_shape {whole}, offset {offset}"
            )
        if not all(o >= 0 and o + s <= g for o, s, g in zip(offset, shape, whole, strict=True)):
            raise ValueError(f"a Shard of shape {shape} at offset {offset} leaves its global_shape {whole}")


Weight: TypeAlias = Tensor | Shard | Sequence[Shard]
Weights: TypeAlias = Mapping[str, Weight]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor as one rank holds it.

    Attributes:
        name: As `weights()` calls it.
        dtype: torch's name of it, such as "bfloat16".
        shape: Of the whole tensor.
        boxes: The blocks that this rank holds; empty blocks are left out.
        tie: First name of this rank under which the same memory is held; its own when there is no other.
        device: "cpu", "cuda:0", ...
        overlaps: Names of this rank, its own included, that share a part of its memory; looked for at targets only.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    tie: str
    device: str = "cpu"
    overlaps: tuple[str, ...] = ()


Sheet: TypeAlias = tuple[TensorSpec, ...]
Piece: TypeAlias = tuple[Box, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """What one rank holds: the specs that travel, and the local blocks that stay."""

    sheet: Sheet
    pieces: Mapping[str, tuple[Piece, ...]]
    digest: str

    def view(self, name: str, box: Box) -> Tensor:
        """The elements of `box`, a view of the user's memory."""
        for held, tensor in self.pieces[name]:
            if box.within(held):
                return tensor[box.inside(held)]
        raise AssertionError(f"{name!r} holds no block around {box}")

    def views(self, name: str, box: Box) -> list[Tensor]:
        """Every block of `name` that holds `box`, cut to it."""
        return [tensor[box.inside(held)] for held, tensor in self.pieces[name] if box.within(held)]


def fingerprint(weights: Weights) -> object:
    """Equal for two answers of `weights()` that are the same memory, laid out the same; cheap to make.

    Whoever keeps a holding keeps its memory, so that an address cannot come back as another tensor's.
    """
    if not isinstance(weights, Mapping):
        return object()  # equal to nothing: `hold` says what is wrong with it
    return tuple((name, *_memory(weight)) for name, weight in weights.items())


def _memory(weight: object) -> tuple[object, ...]:
    if isinstance(weight, DTensor):
        return (*_memory(weight._local_tensor), weight.shape, weight.placements, weight.device_mesh)
    if isinstance(weight, Tensor):
        return (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype)
    if isinstance(weight, Shard):
        return (*_memory(weight.tensor), tuple(weight.global_shape), tuple(weight.offset))
    return tuple(map(_memory, weight)) if isinstance(weight, list | tuple) else (object(),)


def hold(weights: Weights, *, written: bool = False) -> Holding:
    """Read what a component's `weights()` returned on this rank.

    Args:
        weights: What it returned.
        written: These tensors will be written: look for memory that two of them share.

    Raises:
        TypeError: For a value that is neither a tensor nor a Shard.
        ValueError: For a tensor that has no single value yet (a DTensor with a Partial placement, a meta tensor) or
            that has no plain memory (sparse, quantized).
    """
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights() returns a mapping from name to tensor, got {type(weights).__name__}")
    specs: list[TensorSpec] = []
    pieces: dict[str, tuple[Piece, ...]] = {}
    memory: dict[object, str] = {}
    for name, weight in weights.items():
        shape, blocks = _blocks(name, weight)
        first = blocks[0][1]
        for _, tensor in blocks:
            _check(name, tensor, first)
        kept = tuple((box, tensor) for box, tensor in blocks if box.volume)
        pieces[name] = kept
        where = (shape, first.dtype, first.device, tuple((box, t.data_ptr(), t.stride()) for box, t in kept))
        tie = memory.setdefault(where, name) if kept else name
        dtype = str(first.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name, dtype, shape, tuple(box for box, _ in kept), tie, str(first.device)))
    if written:
        own = {spec.name: [tensor for _, tensor in pieces[spec.name]] for spec in specs if spec.tie == spec.name}
        shared = overlaps(own)
        specs = [replace(spec, overlaps=shared.get(spec.tie, ())) for spec in specs]
    sheet = tuple(specs)
    return Holding(sheet, pieces, digest(sheet))


def digest(value: object) -> str:
    """A short hash of a value whose repr says all of it: the same on every host, at every start."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def placed_boxes(
    shape: Sequence[int], mesh_shape: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> list[Box]:
    """The blocks that one coordinate of a torch mesh holds, in the order of its local tensor.

    One block for Replicate and Shard; several where a _StridedShard leaves a rank with separate rows.
    torch gives the first offset alone (`compute_local_shape_and_global_offset`).

    Raises:
        ValueError: For a placement without a value of its own, such as Partial.
    """
    runs = [[(0, size)] for size in shape]
    for size, where, placement in zip(mesh_shape, coordinate, placements, strict=True):
        if isinstance(placement, _StridedShard):
            dim, split = placement.dim, int(placement.split_factor)
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


def _blocks(name: str, weight: Weight) -> tuple[tuple[int, ...], list[Piece]]:
    if isinstance(weight, DTensor):
        return tuple(weight.shape), _dtensor_pieces(name, weight)
    if isinstance(weight, Tensor):
        return tuple(weight.shape), [(Box.whole(tuple(weight.shape)), weight.detach())]
    shards: object = [weight] if isinstance(weight, Shard) else weight
    if not isinstance(shards, Sequence) or not shards or not all(isinstance(shard, Shard) for shard in shards):
        raise TypeError(
            f"weight {name!r} is a Tensor, a DTensor, a Shard or a list of Shards, got {type(weight).__name__}"
        )
    shapes = {tuple(shard.global_shape) for shard in shards}
    if len(shapes) > 1:
        raise ValueError(f"the Shards of {name!r} disagree about its global_shape: {sorted(shapes)}")
    return shapes.pop(), [
        (Box(tuple(shard.offset), tuple(shard.tensor.shape)), shard.tensor.detach()) for shard in shards
    ]


def _dtensor_pieces(name: str, weight: DTensor) -> list[Piece]:
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


def _check(name: str, tensor: Tensor, first: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError(f"weight {name!r} has no plain memory (layout {tensor.layout}): give its parts one by one")
    if tensor.device.type == "meta":
        raise ValueError(f"weight {name!r} is on the meta device: it holds no values")
    if (tensor.dtype, tensor.device) != (first.dtype, first.device):
        raise ValueError(f"the Shards of {name!r} differ in dtype or device: {tensor.dtype} on {tensor.device}")
