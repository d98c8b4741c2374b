"""Rows of torch tensors: views when cut, one copy when joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  loaded only once a caller's own value is a tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


class TorchSplitter:
    """Splitter for `torch.Tensor`; the rows are the first dim."""

    def length(self, value: torch.Tensor) -> int | None:
        """Size of the first dim; None for 0-d."""
        return value.shape[0] if value.ndim else None

    def slice(self, value: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """A view of rows [start, stop)."""
        return value[start:stop]

    def concat(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """One new tensor."""
        return torch.cat(list(values))

    def equal(self, left: torch.Tensor, right: torch.Tensor) -> bool:
        """Same dtype, shape and elements."""
        return left.dtype == right.dtype and torch.equal(left, right)

    def reduce(self, how: str, values: Sequence[torch.Tensor], weights: Sequence[float] | None) -> torch.Tensor:
        """The sum or mean, elementwise, in a type that is wide enough; half types come back as what they were.

        Args:
            how: "sum" or "mean".
            values: At least one, of one shape.
            weights: One for each, not all 0; None weighs all the same.
        """
        dtype = values[0].dtype
        for value in values[1:]:
            dtype = torch.promote_types(dtype, value.dtype)
        narrow = wide = dtype
        if not (dtype.is_floating_point or dtype.is_complex):
            exact = how == "sum" and weights is None
            narrow, wide = (torch.int64, torch.int64) if exact else (torch.get_default_dtype(), torch.float64)
        elif dtype.itemsize < 4:
            wide = torch.float32
        total = torch.zeros((), dtype=wide, device=values[0].device)
        for i, value in enumerate(values):
            total = total + value.to(wide) * (1 if weights is None else weights[i])
        if how == "mean":
            total = total / (len(values) if weights is None else sum(weights))
        return total.to(narrow)


SPLITTER = TorchSplitter()
