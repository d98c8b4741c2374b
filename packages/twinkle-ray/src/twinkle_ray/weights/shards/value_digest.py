"""A digest of values that can be summed over blocks: equal for equal values, however a tensor is cut."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from twinkle_ray.weights.shards.memory import in_a_row

if TYPE_CHECKING:
    from torch import Tensor

    from twinkle_ray.weights.shards.box import Box

_TABLE = 1 << 16
_CHUNK = 1 << 17  # elements whose products stay in the processor's cache
_BITS = {1: torch.uint8, 2: torch.int16}


def digest_values(block: Tensor, box: Box) -> Tensor:
    """The sum, over all elements, of their bits times odd weights that follow from the global index, modulo 2**64.

    A linear hash with pseudo-random odd weights (splitmix64): one changed element always changes it, and other changes
    leave it equal with a probability of 2**-33 at most.

    Args:
        block: Of the box's shape, with any strides.
        box: The block's place in its tensor.

    Returns:
        One int64 element on the block's device.
    """
    words = max(1, block.itemsize // 4)
    flat = in_a_row(block).view(_BITS.get(block.itemsize, torch.int32))
    flat = flat.view(-1, (block.shape[-1] if block.ndim else 1) * words)
    rows = _row_weights(box.offset[:-1], box.shape[:-1], block.device)
    first = (box.offset[-1] if box.offset else 0) * words
    width = min(_CHUNK, flat.shape[1])
    height = max(1, _CHUNK // width)
    totals = []
    for left, right in _spans(flat.shape[1], width):
        columns = _weights(0, first + left, first + right, block.device)
        totals += [
            _weighed(flat[top:bottom, left:right], rows[top:bottom], columns)
            for top, bottom in _spans(flat.shape[0], height)
        ]
    return totals[0] if len(totals) == 1 else torch.stack(totals).sum()


def _spans(size: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, size)) for start in range(0, size, step)]


def _weighed(block: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return ((block * columns).sum(1) * rows).sum()


@lru_cache(maxsize=32)  # small tensors have few shapes
def _row_weights(offset: tuple[int, ...], shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A weight for each row of a block, the product over all dimensions but the last."""
    rows = torch.ones(1, dtype=torch.int64, device=device)
    for dim, (start, size) in enumerate(zip(offset, shape, strict=True), start=1):
        rows = (rows[:, None] * _weights(dim, start, start + size, device)).reshape(-1)
    return rows


def _weights(dim: int, start: int, stop: int, device: torch.device) -> Tensor:
    """Odd weights of the indices [start, stop) of one dimension."""
    if stop <= _TABLE:
        return _table(dim, device)[start:stop]
    return _mixed(torch.arange(start, stop, device=device), dim)


@lru_cache(maxsize=32)
def _table(dim: int, device: torch.device) -> Tensor:
    return _mixed(torch.arange(_TABLE, device=device), dim)


def _mixed(indices: Tensor, dim: int) -> Tensor:
    """splitmix64 of each index, made odd; int64 arithmetic wraps."""
    value = (indices + (dim << 48)) * _signed(0x9E3779B97F4A7C15)
    value = (value ^ _shifted(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * _signed(0x94D049BB133111EB)
    return (value ^ _shifted(value, 31)) | 1


def _shifted(value: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64)
