"""Sums and means of nested values; the structure stays, and a vector never becomes a scalar."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CollectError, DispatchError
from twinkle_remote.values.attributes import common_attributes
from twinkle_remote.values.columns import columns, is_mapping, part_path, rebuild, with_items
from twinkle_remote.values.rows import equal, reducible_splitter_of, shape_of, splitter_of
from twinkle_remote.values.sequences import sequence_like

if TYPE_CHECKING:
    from collections.abc import Sequence


def reduce(how: str, values: Sequence[Any], weights: Sequence[float] | None, path: str) -> Any:
    """The sum or mean of values of one shape.

    Args:
        how: "sum" or "mean".
        values: At least one: numbers, arrays, tensors, or dicts, dataclasses, lists and tuples of them. Dicts may
            differ in keys: each key is reduced over the values that have it. Equal strings and None stay.
        weights: One for each value, at or above 0; those of weight 0 are left out. None weighs all the same.
        path: What the values are, for messages.

    Raises:
        CollectError: Shapes or types disagree, or the weights add up to 0.
    """
    if weights is None:
        return _reduce(how, values, None, path)
    if not (min(weights) >= 0 and sum(weights) > 0):
        raise CollectError(f"{path}: weights are at or above 0 and not all 0, got {list(weights)}")
    kept = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
    alike = how == "mean" and len({weight for _, weight in kept}) == 1
    return _reduce(how, [value for value, _ in kept], None if alike else [weight for _, weight in kept], path)


def _reduce(how: str, values: Sequence[Any], weights: Sequence[float] | None, path: str) -> Any:
    first = values[0]
    parts = None if reducible_splitter_of(type(first)) is not None else columns(first)
    if parts is not None:
        _alike(values, path)
        tables = [columns(value) or {} for value in values]
        keys = dict.fromkeys(key for table in tables for key in table) if is_mapping(first) else dict.fromkeys(parts)
        fresh = {key: _over_key(how, key, tables, weights, part_path(path, first, key)) for key in keys}
        try:
            return with_items(first, fresh) if is_mapping(first) else rebuild(first, list(fresh.values()))
        except DispatchError as error:
            raise CollectError(f"{path}: {error}") from error
    if isinstance(first, list | tuple):
        _alike(values, path)
        sizes = sorted({len(value) for value in values})
        if len(sizes) > 1:
            raise CollectError(f"{path}: lists are reduced element by element, but their lengths are {sizes}")
        items = [_reduce(how, item, weights, f"{path}[{i}]") for i, item in enumerate(zip(*values, strict=True))]
        try:
            return sequence_like(first, items, {} if type(first) in (list, tuple) else common_attributes(values))
        except (DispatchError, ValueError) as error:
            raise CollectError(f"{path}: {error}") from error
    return _leaf(how, values, weights, path)


def _over_key(how: str, key: Any, tables: Sequence[Any], weights: Sequence[float] | None, path: str) -> Any:
    having = [i for i, table in enumerate(tables) if key in table]
    shares = None if weights is None else [weights[i] for i in having]
    return _reduce(how, [tables[i][key] for i in having], shares, path)


def _leaf(how: str, values: Sequence[Any], weights: Sequence[float] | None, path: str) -> Any:
    if len(set(map(type, values))) > 1:
        values = _as_numbers(values)
    first = values[0]
    splitter = splitter_of(type(first))
    if splitter is None and not isinstance(first, numbers.Number) and not hasattr(first, "dtype"):
        if all(equal(value, first) for value in values[1:]):
            return first
        shown = ", ".join(f"{type(value).__name__} {value!r:.40}" for value in values[:4])
        raise CollectError(f"{path}: {how} needs numbers, arrays or tensors that are alike, got {shown}")
    if splitter is not None:
        shapes = sorted({shape_of(value) for value in values})
        if len(shapes) != 1:
            raise CollectError(f"{path}: arrays are reduced elementwise, but their shapes are {shapes}")
    try:
        reducible = reducible_splitter_of(type(first))
        return _plain(how, values, weights) if reducible is None else reducible.reduce(how, values, weights)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        raise CollectError(f"{path}: {how} of {kinds}: {error}") from error


def _as_numbers(values: Sequence[Any]) -> Sequence[Any]:
    """Scalars of Python, numpy and torch that meet, as Python's numbers; anything else as it is."""
    if not any(isinstance(value, int | float | complex) and not hasattr(value, "dtype") for value in values):
        return values
    if not all(isinstance(value, numbers.Number) or (hasattr(value, "dtype") and not value.shape) for value in values):
        return values
    return [value.item() if hasattr(value, "dtype") else value for value in values]


def _plain(how: str, values: Sequence[Any], weights: Sequence[float] | None) -> Any:
    scaled = values if weights is None else [value * weight for value, weight in zip(values, weights, strict=True)]
    total = scaled[0] + 0
    for value in scaled[1:]:
        total = total + value
    return total if how == "sum" else total / (len(values) if weights is None else sum(weights))


def _alike(values: Sequence[Any], path: str) -> None:
    kinds = sorted({type(value).__name__ for value in values})
    if len(kinds) > 1:
        raise CollectError(f"{path}: values of one shape are reduced, got {', '.join(kinds)}")
