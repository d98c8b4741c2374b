"""Rows of torch tensors: views when cut, one copy when joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID251  loaded only once a caller's own value is a tensor

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


SPLITTER = TorchSplitter()
