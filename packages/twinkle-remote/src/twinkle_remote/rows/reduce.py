"""Sums and means of nested values; the structure stays, and a vector never becomes a scalar. Equality of wholes."""

from __future__ import annotations

import numbers
import sys
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CollectError, DispatchError
from twinkle_remote.rows.libraries import read_only
from twinkle_remote.rows.records import is_mapping, part_path, parts_of, rebuild, with_items
from twinkle_remote.rows.row_types import row_type_of, sequence_like
from twinkle_remote.rows.unknown import refuse_attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    Weights = Sequence[float] | None


def equal(left: object, right: object) -> bool:
    """Whether two values are equal, arrays and tensors as wholes; NaN equals NaN."""
    one: Any = left
    other: Any = right
    if type(left) is not type(right) or (hasattr(one, "dtype") and one.dtype != other.dtype):
        return False
    if _is_of("torch", "Tensor", one):
        return bool(sys.modules["torch"].equal(one, other))
    if _is_of("numpy", "ndarray", one):
        return bool(sys.modules["numpy"].array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
    try:
        return bool(left == right) or bool(left != left and right != right)
    except (TypeError, ValueError):  # a comparison without a truth value
        return False


def shape_of(value: object) -> tuple[int, ...]:
    """The shape of an array or tensor, for comparison; empty if it has none."""
    nested = bool(getattr(value, "is_nested", False))
    return () if nested else tuple(getattr(value, "shape", ()))


def reduce(how: str, values: Sequence[Any], weights: Weights, path: str) -> Any:
    """The sum or mean of values of one shape.

    Args:
        how: "sum" or "mean".
        values: At least one: numbers, arrays, tensors, or dicts, dataclasses, lists and tuples of them. Dicts may
            differ in keys: each key is reduced over the values that have it. Equal strings and None stay.
        weights: One for each value, at or above 0; those of weight 0 are left out. None weighs all the same.
        path: What the values are, for messages.

    Raises:
        CollectError: Shapes or types disagree, or the weights add up to 0; or they are rows of a type whose rows are
            not added up, such as a frame.
    """
    if weights is None:
        return _reduce(how, values, None, path)
    if not (min(weights) >= 0 and sum(weights) > 0):
        raise CollectError(f"{path}: weights are at or above 0 and not all 0, got {list(weights)}")
    kept = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
    alike = how == "mean" and len({weight for _, weight in kept}) == 1
    return _reduce(how, [value for value, _ in kept], None if alike else [weight for _, weight in kept], path)


def _reduce(how: str, values: Sequence[Any], weights: Weights, path: str) -> Any:
    first = values[0]
    by_place = isinstance(first, list) or (isinstance(first, tuple) and not hasattr(first, "_make"))
    parts = None if by_place or row_type_of(type(first)) is not None else parts_of(first)
    if parts is None and not by_place:
        return _leaf(how, values, weights, path)
    kinds = sorted({type(value).__name__ for value in values})
    if len(kinds) > 1:
        raise CollectError(f"{path}: values of one shape are reduced, got {', '.join(kinds)}")
    try:
        return _by_place(how, values, weights, path) if parts is None else _by_part(how, values, weights, path)
    except DispatchError as error:
        raise CollectError(f"{path}: {error}") from error


def _by_part(how: str, values: Sequence[Any], weights: Weights, path: str) -> Any:
    first = values[0]
    tables = [parts_of(value) or {} for value in values]
    fresh: dict[Any, object] = {}
    for key in dict.fromkeys(key for table in tables for key in table):
        having = [i for i, table in enumerate(tables) if key in table]
        shares = None if weights is None else [weights[i] for i in having]
        fresh[key] = _reduce(how, [tables[i][key] for i in having], shares, part_path(path, first, key))
    return with_items(first, fresh) if is_mapping(first) else rebuild(first, list(fresh.values()))


def _by_place(how: str, values: Sequence[Any], weights: Weights, path: str) -> Any:
    sizes = sorted({len(value) for value in values})
    if len(sizes) > 1:
        raise CollectError(f"{path}: lists are reduced element by element, but their lengths are {sizes}")
    refuse_attributes(values[0])
    items = [_reduce(how, item, weights, f"{path}[{i}]") for i, item in enumerate(zip(*values, strict=True))]
    return sequence_like(values[0], items)


def _leaf(how: str, values: Sequence[Any], weights: Weights, path: str) -> Any:
    if len(set(map(type, values))) > 1:
        values = _as_numbers(values)
    first = values[0]
    rows = row_type_of(type(first))
    if rows is None and not isinstance(first, numbers.Number) and not hasattr(first, "dtype"):
        if all(equal(value, first) for value in values[1:]):
            return first
        shown = ", ".join(f"{type(value).__name__} {value!r:.40}" for value in values[:4])
        raise CollectError(f"{path}: {how} needs numbers, arrays or tensors that are alike, got {shown}")
    shapes = sorted({shape_of(value) for value in values})
    if len(shapes) != 1:
        raise CollectError(f"{path}: arrays are reduced elementwise, but their shapes are {shapes}")
    kinds = ", ".join(sorted({type(value).__name__ for value in values}))
    try:
        if _is_of("torch", "Tensor", first):
            return _tensors(how, values, weights)
        if _is_of("numpy", "ndarray", first) or _is_of("numpy", "generic", first):
            return _arrays(how, values, weights)
        if rows is None:
            return _total(how, values, weights)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise CollectError(f"{path}: {how} of {kinds}: {error}") from error
    raise CollectError(
        f"{path}: {kinds} has rows of its own, which have no {how}: collect them with 'flatten', or return numbers"
    )


def _is_of(library: str, name: str, value: Any) -> bool:
    known = sys.modules.get(library)
    return known is not None and isinstance(value, getattr(known, name))


def _as_numbers(values: Sequence[Any]) -> Sequence[Any]:
    """Scalars of Python, numpy and torch that meet, as Python's numbers; anything else as it is."""
    if not any(isinstance(value, int | float | complex) and not hasattr(value, "dtype") for value in values):
        return values
    if not all(isinstance(value, numbers.Number) or (hasattr(value, "dtype") and not value.shape) for value in values):
        return values
    return [value.item() if hasattr(value, "dtype") else value for value in values]


def _total(how: str, values: Sequence[Any], weights: Weights) -> Any:
    total = sum(value if weights is None else value * weights[i] for i, value in enumerate(values))
    return total if how == "sum" else total / (len(values) if weights is None else sum(weights))


def _arrays(how: str, values: Sequence[Any], weights: Weights) -> Any:
    """Arrays in a type that is wide enough, by numpy's own rule for `sum` and `mean`; halves keep their type."""
    import numpy as np

    dtype = np.result_type(*values)
    wide = dtype
    if dtype.kind in "biu":
        integral = how == "sum" and weights is None
        wide = np.dtype(np.uint64 if dtype.kind == "u" else np.int64) if integral else np.dtype(np.float64)
    elif dtype == np.float16:
        wide = np.dtype(np.float32)
    total = _total(how, [value.astype(wide) for value in values], weights)
    total = total.astype(dtype if dtype == np.float16 else wide)
    return read_only(total) if isinstance(total, np.ndarray) else total


def _tensors(how: str, values: Sequence[Any], weights: Weights) -> Any:
    """Tensors in a type that is wide enough; halves keep their type."""
    import torch

    dtype = values[0].dtype
    for value in values[1:]:
        dtype = torch.promote_types(dtype, value.dtype)
    narrow, wide = dtype, torch.float32 if dtype.itemsize < 4 else dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        exact = how == "sum" and weights is None
        narrow, wide = (torch.int64, torch.int64) if exact else (torch.get_default_dtype(), torch.float64)
    elif dtype == torch.complex32:
        wide = torch.complex64
    return _total(how, [value.to(wide) for value in values], weights).to(narrow)
