"""Rows of torch tensors: views when cut, one copy when joined. Sparse and nested tensors have them as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch  # noqa: TID253  loaded only once a caller's own value is a tensor

from twinkle_remote.errors import DispatchError
from twinkle_remote.values.adapters import torch_jagged as jagged
from twinkle_remote.values.attributes import attributes_of, carried, finalized_attributes, set_attributes
from twinkle_remote.values.sequences import by_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.tables import Rows

_BY_ROW_OR_COLUMN = (torch.sparse_csr, torch.sparse_csc)
_ONE_SCALE = {torch.per_tensor_affine, torch.per_tensor_symmetric}
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
            return jagged.rows(value, start, stop)
        if type(value) is not torch.Tensor:
            part = value[start:stop]
            return _of_kind(value, part, carried(value, dict(attributes_of(part))))
        if value.layout == torch.strided:
            return value[start:stop]
        if value.layout in _BY_BLOCK:
            raise DispatchError(
                f"rows of a tensor of layout {value.layout} cannot be cut: pass value.to_sparse_coo(), or "
                "Replicate(value) to send it whole"
            )
        return torch.narrow_copy(_coordinates(value), 0, start, stop - start).to_sparse(layout=value.layout)

    def take(self, value: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Rows of these numbers: a copy."""
        if type(value) is not torch.Tensor or value.is_nested or value.is_quantized or value.layout != torch.strided:
            return cast("torch.Tensor", by_runs(self, value, rows))
        return value[torch.tensor(rows, dtype=torch.int64, device=value.device)]

    def concat(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """One new tensor; layouts, types and attributes are kept.

        Raises:
            ValueError: The elements would become others, or types, layouts and attributes differ.
        """
        first = values[0]
        kinds = list(dict.fromkeys((type(value).__name__, str(value.layout), value.is_nested) for value in values))
        if len(kinds) > 1:
            raise ValueError(f"their types and layouts are {kinds}")
        _check_types(values)
        if first.is_quantized:
            _check_scales(values)
        if first.is_nested:
            return jagged.joined(values)
        if first.layout in _BY_ROW_OR_COLUMN:
            return torch.cat([_coordinates(value) for value in values]).to_sparse(layout=first.layout)
        if type(first) is not torch.Tensor:
            made = torch.cat(list(values))
            return _of_kind(first, made, finalized_attributes(made, values))
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
            return jagged.reduced(values, lambda parts: self.reduce(how, parts, weights))
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


def _of_kind(like: torch.Tensor, made: torch.Tensor, attributes: dict[str, object]) -> torch.Tensor:
    """A tensor as one of the type of another, with attributes.

    Raises:
        DispatchError: The type makes tensors of another type of its rows.
    """
    if isinstance(like, torch.nn.Parameter) and type(like) is torch.nn.Parameter:
        made = torch.nn.Parameter(made.detach(), requires_grad=like.requires_grad)
    if type(made) is not type(like):
        raise DispatchError(
            f"rows of a {type(like).__name__} are a {type(made).__name__}: pass value.as_subclass(torch.Tensor), or "
            "Replicate(value) to send it whole"
        )
    set_attributes(made, attributes)
    return made


def _check_types(values: Sequence[torch.Tensor]) -> None:
    """Check that each element stays what it is in the common type."""
    dtypes = list(dict.fromkeys(value.dtype for value in values))
    if len(dtypes) == 1:
        return
    common = dtypes[0]
    for dtype in dtypes[1:]:
        common = torch.promote_types(common, dtype)
    for value in values:
        if value.dtype != common and not _survives(value, common):
            raise ValueError(
                f"their types are {', '.join(map(str, dtypes))}, and as {common} some elements would be others; return "
                "one type on all ranks"
            )


def _check_scales(values: Sequence[torch.Tensor]) -> None:
    """Check that quantized tensors have one scale for all: torch would round them to that of the first."""
    schemes = {value.qscheme() for value in values}
    scales = {(value.q_scale(), value.q_zero_point()) for value in values} if schemes <= _ONE_SCALE else set()
    if len(scales) != 1:
        raise ValueError(f"their scales are {sorted(scales)} ({', '.join(map(str, schemes))}): pass value.dequantize()")


def _survives(value: torch.Tensor, common: torch.dtype) -> bool:
    """Whether all elements are the same in a type that is not narrower by torch's rules."""
    whole = not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool)
    if not (whole and (common.is_floating_point or common.is_complex)):
        return torch.promote_types(value.dtype, common) == common and not _narrower(value.dtype, common)
    held = value
    if value.is_nested:
        held = value.values()
    elif value.layout != torch.strided:
        held = _coordinates(value).coalesce().values()
    limit = int(2 / torch.finfo(common).eps)
    if torch.finfo(common).max < limit:
        limit = int(torch.finfo(common).max)
    return not held.numel() or (-limit <= int(held.min()) and int(held.max()) <= limit)


def _narrower(dtype: torch.dtype, common: torch.dtype) -> bool:
    """Whether a number type holds less than one that is promoted to it (float64 with complex64)."""
    if not (common.is_floating_point or common.is_complex) or dtype == torch.bool:
        return False
    return torch.finfo(dtype).eps < torch.finfo(common).eps or torch.finfo(dtype).max > torch.finfo(common).max


SPLITTER = TorchSplitter()
