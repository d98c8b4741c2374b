"""Rows of torch tensors: views when cut, one copy when joined. Sparse and nested tensors have them as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: TID253  loaded only once a caller's own value is a tensor

from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_BY_ROW_OR_COLUMN = (torch.sparse_csr, torch.sparse_csc)
_BY_BLOCK = (torch.sparse_bsr, torch.sparse_bsc)


class TorchSplitter:
    """Splitter for `torch.Tensor`; the rows are the first dim, those of a nested tensor its components."""

    def length(self, value: torch.Tensor) -> int | None:
        """Size of the first dim; None for 0-d."""
        return int(value.size(0)) if value.dim() else None

    def slice(self, value: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop): a view, of a sparse tensor a copy.

        Raises:
            DispatchError: It is sparse by blocks, which rows would cut through.
        """
        if value.is_nested:
            return _nested(value, value.unbind()[start:stop])
        if value.layout == torch.strided:
            return value[start:stop]
        if value.layout in _BY_BLOCK:
            raise DispatchError(
                f"rows of a tensor of layout {value.layout} cannot be cut: pass value.to_sparse_coo(), or "
                "Replicate(value) to send it whole"
            )
        return torch.narrow_copy(_coordinates(value), 0, start, stop - start).to_sparse(layout=value.layout)

    def concat(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """One new tensor."""
        first = values[0]
        if first.is_nested:
            return _nested(first, [row for value in values for row in value.unbind()])
        if first.layout in _BY_ROW_OR_COLUMN:
            return torch.cat([_coordinates(value) for value in values]).to_sparse(layout=first.layout)
        return torch.cat(list(values))

    def equal(self, left: torch.Tensor, right: torch.Tensor) -> bool:
        """Same dtype, shape and elements."""
        return left.dtype == right.dtype and torch.equal(left, right)

    def reduce(self, how: str, values: Sequence[torch.Tensor], weights: Sequence[float] | None) -> torch.Tensor:
        """The sum or mean, elementwise, in a type that is wide enough; half types keep their type.

        Args:
            how: "sum" or "mean".
            values: At least one, of one shape.
            weights: One for each, not all 0; None weighs all the same.
        """
        first = values[0]
        if first.is_nested:
            rows = zip(*[value.unbind() for value in values], strict=True)
            return _nested(first, [self.reduce(how, row, weights) for row in rows])
        if first.layout != torch.strided:
            values = [_coordinates(value) for value in values]
        narrow, wide = _types(values, exact=how == "sum" and weights is None)
        total = values[0].to(wide) * (1 if weights is None else weights[0])
        for i, value in enumerate(values[1:], 1):
            total = total + value.to(wide) * (1 if weights is None else weights[i])
        if how == "mean":
            total = total / (len(values) if weights is None else sum(weights))
        total = total.to(narrow)
        return total if first.layout == total.layout else total.to_sparse(layout=first.layout)


def _types(values: Sequence[torch.Tensor], *, exact: bool) -> tuple[torch.dtype, torch.dtype]:
    """The type of a reduction's result, and the type of its computation."""
    dtype = values[0].dtype
    for value in values[1:]:
        dtype = torch.promote_types(dtype, value.dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        return (torch.int64, torch.int64) if exact else (torch.get_default_dtype(), torch.float64)
    if dtype == torch.complex32:
        return dtype, torch.complex64
    return dtype, torch.float32 if dtype.itemsize < 4 else dtype


def _coordinates(value: torch.Tensor) -> torch.Tensor:
    return value if value.layout == torch.sparse_coo else value.to_sparse(layout=torch.sparse_coo)


def _nested(like: torch.Tensor, rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """A nested tensor of these components, in the layout of another one."""
    if rows:
        return torch.nested.as_nested_tensor(list(rows), layout=like.layout)
    if like.layout != torch.jagged:
        return torch.nested.nested_tensor([], dtype=like.dtype, device=like.device, layout=like.layout)
    jagged: Any = like
    empty: torch.Tensor = torch.nested.nested_tensor_from_jagged(jagged.values()[:0], jagged.offsets()[:1])
    return empty


SPLITTER = TorchSplitter()
