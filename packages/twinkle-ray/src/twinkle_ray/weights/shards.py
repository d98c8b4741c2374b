"""Reads what `weights()` returns: the blocks of each tensor that a rank holds, as boxes, and the memory behind them.

Tensors, DTensors and `Shard`s become specs, which travel to the driver, and views, which stay. The boxes of a DTensor
follow from its mesh and placements: one for Shard, several where a _StridedShard gives a rank separate rows.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import torch
from torch import Tensor
from torch.optim import Optimizer

from twinkle_ray.torch_internals import strided_split
from twinkle_ray.weights.boxes import Box
from twinkle_ray.weights.errors import ManifestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

_SHOWN = 4


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A block of a larger tensor: `tensor` lies at `offset` in a tensor of `global_shape`.

    Args:
        tensor: The local block, with any strides; a view of a fused parameter works, and is written in place.
        global_shape: Shape of the whole tensor.
        offset: Start of the block, one index for each dimension.

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
Weights: TypeAlias = Mapping[str, Weight | Mapping[str, Weight]]
"""A rank's tensors by name; a mapping inside is a named set, whose tensors are called `set.name`."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor as one rank holds it.

    Attributes:
        name: Key in the mapping of `weights()`.
        dtype: torch's name of the dtype, such as "bfloat16".
        shape: Of the whole tensor.
        boxes: The blocks that this rank holds; empty blocks are left out.
        tie: First name on this rank with the same memory; its own name if there is no other.
        device: "cpu", "cuda:0", ...
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    tie: str
    device: str = "cpu"


RankSpecs: TypeAlias = tuple[TensorSpec, ...]
Piece: TypeAlias = tuple[Box, Tensor]
Places: TypeAlias = tuple[tuple[str, tuple[object, ...]], ...]


@dataclass(frozen=True, slots=True, eq=False)
class LocalShards:
    """The shards of one rank: their specs, the memory of their blocks, and its devices."""

    rank_specs: RankSpecs
    pieces: Mapping[str, tuple[Piece, ...]]
    digest: str
    devices: frozenset[torch.device]

    def view(self, name: str, box: Box) -> Tensor:
        """The elements of `box`, a view of the user's memory."""
        for held, tensor in self.pieces[name]:
            if box.within(held):
                return tensor[box.inside(held)]
        raise AssertionError(f"{name!r} holds no block around {box}")

    def views(self, name: str, box: Box) -> list[Tensor]:
        """Every block of `name` that holds `box`, cut to it."""
        return [tensor[box.inside(held)] for held, tensor in self.pieces.get(name, ()) if box.within(held)]


def digest(value: object) -> str:
    """A short hash of a value's repr, which must be the same on every host and in every run."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def flattened(weights: Weights) -> dict[str, Weight]:
    """The tensors of all named sets in one mapping.

    Raises:
        TypeError: It is no mapping.
        ValueError: Two sets have a tensor of the same name.
    """
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights() returns a mapping from name to tensor, got {type(weights).__name__}")
    found: dict[str, Weight] = {}
    for name, value in weights.items():
        own = {f"{name}.{inner}": weight for inner, weight in value.items()} if isinstance(value, Mapping) else None
        for full, weight in ({name: value} if own is None else own).items():
            if full in found:
                raise ValueError(f"weights() returns {full!r} twice, in two named sets")
            found[full] = weight  # type: ignore[assignment]  # a mapping was flattened
    return found


def hold(weights: Weights, *, written: bool = False) -> LocalShards:
    """Read the result of a component's `weights()` on this rank.

    Args:
        weights: The result.
        written: Whether the sync writes these tensors.

    Raises:
        TypeError: For a value that is neither a tensor nor a Shard.
        ValueError: For a tensor without values (a DTensor with a Partial placement, a meta tensor), without plain
            memory (sparse, quantized, nested, a lazy conjugate), or that torch does not let anybody write.
    """
    specs: list[TensorSpec] = []
    pieces: dict[str, tuple[Piece, ...]] = {}
    memory: dict[object, str] = {}
    for name, weight in flattened(weights).items():
        shape, blocks = _blocks(name, weight)
        first = blocks[0][1]
        for _, tensor in blocks:
            _check(name, tensor, first, written)
        kept = tuple((box, tensor) for box, tensor in blocks if box.volume)
        pieces[name] = kept
        where = (shape, first.dtype, first.device, tuple((box, t.data_ptr(), t.stride()) for box, t in kept))
        tie = memory.setdefault(where, name) if kept else name
        dtype = str(first.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name, dtype, shape, tuple(box for box, _ in kept), tie, str(first.device)))
    rank_specs = tuple(specs)
    devices = frozenset(tensor.device for of_name in pieces.values() for _, tensor in of_name)
    return LocalShards(rank_specs, pieces, digest(rank_specs), devices)


def _blocks(name: str, weight: Weight) -> tuple[tuple[int, ...], list[Piece]]:
    if is_dtensor(weight):
        return tuple(weight.shape), dtensor_pieces(name, weight)
    if isinstance(weight, Tensor):
        if weight.is_nested:
            raise ValueError(f"weight {name!r} is a nested tensor, without a shape: return its parts as dense tensors")
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


def _check(name: str, tensor: Tensor, first: Tensor, written: bool) -> None:
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"weight {name!r} is a lazy view whose memory has other values (a conjugate, or negated): return "
            "tensor.resolve_conj().resolve_neg()"
        )
    if written and tensor.is_inference():
        raise ValueError(
            f"weight {name!r} of the target was made in torch.inference_mode(), and torch does not let it be written "
            "outside of that: build the target under torch.no_grad()"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError(
            f"weight {name!r} has no plain memory (layout {tensor.layout}): return its parts as dense tensors"
        )
    if tensor.device.type == "meta":
        raise ValueError(f"weight {name!r} is on the meta device: it holds no values")
    if (tensor.dtype, tensor.device) != (first.dtype, first.device):
        raise ValueError(f"the Shards of {name!r} differ in dtype or device: {tensor.dtype} on {tensor.device}")


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Whether a value is a DTensor; where nobody has imported them, which takes 0.6 s, there are none."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(value, kind)


Runs: TypeAlias = list[tuple[int, int]]


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
            chunks = [_chunk(runs[dim], split, part) for part in range(split)]
            runs[dim] = _joined([run for chunk in chunks for run in _chunk(chunk, size, where)])
        elif isinstance(placement, ShardPlacement):
            runs[placement.dim] = _chunk(runs[placement.dim], size, where)
        elif not isinstance(placement, Replicate):
            raise ValueError(f"a weight needs Shard or Replicate placements, got {placement!r}: redistribute it first")
    return [Box(tuple(a for a, _ in sides), tuple(b - a for a, b in sides)) for sides in product(*runs)]


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


def _joined(runs: Runs) -> Runs:
    joined: Runs = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def dtensor_pieces(name: str, weight: DTensor) -> list[Piece]:
    """The local blocks of a DTensor, each with its box; one empty block where this rank holds none.

    Raises:
        ValueError: If it has a placement without values, or its local tensor does not fit its placements.
    """
    mesh, shape = weight.device_mesh, tuple(weight.shape)
    with torch.no_grad():
        local: Tensor = weight.to_local().detach()
    coordinate = mesh.get_coordinate()
    try:
        boxes = [] if coordinate is None else placed_boxes(shape, tuple(mesh.shape), coordinate, weight.placements)
    except ValueError as error:
        raise ValueError(f"weight {name!r}: {error}") from None
    if coordinate is not None and sum(box.volume for box in boxes) != local.numel():
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
    return [
        (box, local[tuple(slice(at[o], at[o] + s) for at, o, s in zip(starts, box.offset, box.shape, strict=True))])
        for box in boxes
    ]


def places_of(weights: Weights) -> Places:
    """Where the elements of each name are, and how: equal for two results that share them, while both are alive."""
    return tuple([(name, _place(weight)) for name, weight in flattened(weights).items()])


def _place(weight: Any) -> tuple[object, ...]:
    if is_dtensor(weight):
        return (*_place(weight.to_local()), weight.shape, weight.placements, weight.device_mesh)
    if isinstance(weight, Tensor):
        return (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype)
    if isinstance(weight, Shard):
        return (*_place(weight.tensor), tuple(weight.global_shape), tuple(weight.offset))
    return tuple(map(_place, weight)) if isinstance(weight, list | tuple) else (object(),)


def check_own(first: Weights, weights: Callable[[], Weights]) -> None:
    """Check that a target's `weights()` returns the same memory again, not copies, which a sync would fill in vain.

    Args:
        first: The result of one call, which is alive meanwhile.
        weights: The component's method.

    Raises:
        ManifestError: It returns copies; the error names some of them.
    """
    again = dict(places_of(weights()))
    copies = [name for name, place in places_of(first) if again.get(name) != place]
    if copies:
        shown = ", ".join(map(repr, copies[:_SHOWN]))
        more = f" and {len(copies) - _SHOWN} more" if len(copies) > _SHOWN else ""
        raise ManifestError(
            f"weights() of the target returns copies: {shown}{more} lie in other memory at each call, so that a sync "
            "into them would change nothing: return the parameters themselves, or memory that the component keeps and "
            "reads in on_weights()"
        )


def why_trained(instance: object, local_shards: LocalShards) -> str:
    """The optimizer of a component that holds some of its weights; "" without one.

    Args:
        instance: The component; its attributes are looked at, and the items of those that are lists, tuples or dicts.
        local_shards: Its weights.
    """
    for optimizer in _optimizers(instance):
        held = {_address(tensor) for group in optimizer.param_groups for tensor in group["params"]} - {0}
        for name, pieces in local_shards.pieces.items():
            if any(tensor.data_ptr() in held for _, tensor in pieces):
                return f"{name!r} is one of the tensors of its {type(optimizer).__name__}"
    return ""


def _optimizers(instance: object) -> Iterator[Optimizer]:
    for value in getattr(instance, "__dict__", {}).values():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        yield from [one for one in items if isinstance(one, Optimizer)]


def _address(tensor: Tensor) -> int:
    local = tensor.to_local().detach() if is_dtensor(tensor) else tensor
    return local.data_ptr() if local.device.type != "meta" else 0
