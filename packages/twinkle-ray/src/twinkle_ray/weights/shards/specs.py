"""What one rank holds: the specs that travel, and the local blocks that stay."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from twinkle_ray.weights.shards.box import Box

if TYPE_CHECKING:
    from collections.abc import Mapping


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


RankSpecs: TypeAlias = tuple[TensorSpec, ...]
Piece: TypeAlias = tuple[Box, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class LocalShards:
    """What one rank holds: the specs that travel, and the local blocks that stay."""

    sheet: RankSpecs
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


def digest(value: object) -> str:
    """A short hash of a value whose repr says all of it: the same on every host, at every start."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]
