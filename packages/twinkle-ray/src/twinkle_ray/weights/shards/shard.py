"""Reads the user's tensors, DTensors and Shards into boxes and specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from twinkle_ray.weights.shards.box import Box
from twinkle_ray.weights.shards.dtensor import dtensor_pieces, is_dtensor
from twinkle_ray.weights.shards.memory import overlaps
from twinkle_ray.weights.shards.specs import LocalShards, Piece, TensorSpec, digest


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
Weights: TypeAlias = Mapping[str, Weight]


def hold(weights: Weights, *, written: bool = False) -> LocalShards:
    """Read the result of a component's `weights()` on this rank.

    Args:
        weights: The result.
        written: Whether the sync writes these tensors; if so, find memory that two of them share.

    Raises:
        TypeError: For a value that is neither a tensor nor a Shard.
        ValueError: For a tensor without values (a DTensor with a Partial placement, a meta tensor), without plain
            memory (sparse, quantized, nested, a lazy conjugate), or that torch does not let anybody write.
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
            _check(name, tensor, first, written)
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
