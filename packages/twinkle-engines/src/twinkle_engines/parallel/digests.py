"""Digests of tensors: numbers that differ where a bit, a row or a column is another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def digest_tensor(values: Tensor) -> int:
    """A sum over the bits of a tensor, weighed by row and by column; the same for the same bits on every machine.

    Args:
        values: Of any shape; floating point, whole numbers or flags.
    """
    parts = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[parts.dtype.itemsize]
    bits = parts.detach().contiguous().view(whole)
    table = bits.reshape(len(bits), -1) if bits.dim() and bits.numel() else bits.reshape(1, -1)
    return _weighed(table.sum(1, dtype=torch.int64)) + 31 * _weighed(table.sum(0, dtype=torch.int64))


def _weighed(sums: Tensor) -> int:
    """The sum of some numbers, each times a weight of its place that looks random (SplitMix64), modulo 2^64."""
    weights = torch.arange(1, len(sums) + 1, dtype=torch.int64) * -7046029254386353131
    weights = (weights ^ (weights >> 30)) * -4658895280553007687
    return int((sums.cpu() * (weights ^ (weights >> 27))).sum())
