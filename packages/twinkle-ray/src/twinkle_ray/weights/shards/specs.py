"""The specs of a rank's shards, which travel to the controller, and its local blocks, which stay."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from twinkle_ray.weights.shards.box import Box

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


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
        overlaps: Names on this rank, its own included, that share a part of its memory; filled in at targets only.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    tie: str
    device: str = "cpu"
    overlaps: tuple[str, ...] = ()


RankSpecs: TypeAlias = tuple[TensorSpec, ...]
Piece: TypeAlias = tuple[Box, Tensor]


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
        return [tensor[box.inside(held)] for held, tensor in self.pieces[name] if box.within(held)]


def digest(value: object) -> str:
    """A short hash of a value's repr, which must be the same on every host and in every run."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]
