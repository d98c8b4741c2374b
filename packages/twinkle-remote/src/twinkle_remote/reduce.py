"""Sums and means of nested values; the structure stays, and a vector never becomes a scalar."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CollectError
from twinkle_remote.split import columns, equal, rebuild, splitter_of

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
        return _reduce(how, values, [1.0] * len(values), path, weighted=False)
    if min(weights) < 0 or not sum(weights) > 0:
        raise CollectError(f"{path}: weights are at or above 0 and not all 0, got {list(weights)}")
    kept = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
    return _reduce(how, [value for value, _ in kept], [weight for _, weight in kept], path, weighted=True)


def _reduce(how: str, values: Sequence[Any], weights: Sequence[float], path: str, *, weighted: bool) -> Any:
    first = values[0]
    if isinstance(first, dict):
        _alike(values, path)
        keys = dict.fromkeys(key for value in values for key in value)
        out = {}
        for key in keys:
            having = [(value[key], weight) for value, weight in zip(values, weights, strict=True) if key in value]
            parts, shares = [part for part, _ in having], [weight for _, weight in having]
            out[key] = _reduce(how, parts, shares, f"{path}[{key!r}]", weighted=weighted)
        return out
    if isinstance(first, list | tuple) and not hasattr(first, "_fields"):
        _alike(values, path)
        sizes = {len(value) for value in values}
        if len(sizes) > 1:
            raise CollectError(f"{path}: lists are reduced element by element, but their lengths are {sorted(sizes)}")
        items = [
            _reduce(how, item, weights, f"{path}[{i}]", weighted=weighted)
            for i, item in enumerate(zip(*values, strict=True))
        ]
        return items if isinstance(first, list) else tuple(items)
    parts_of = columns(first)
    if parts_of is not None:
        _alike(values, path)
        tables = [columns(value) or {} for value in values]
        fields = [
            _reduce(how, [table[key] for table in tables], weights, f"{path}.{key}", weighted=weighted)
            for key in parts_of
        ]
        return rebuild(first, fields)
    return _leaf(how, values, weights, path, weighted=weighted)


def _leaf(how: str, values: Sequence[Any], weights: Sequence[float], path: str, *, weighted: bool) -> Any:
    first = values[0]
    if splitter_of(type(first)) is not None:
        shapes = {tuple(value.shape) for value in values if hasattr(value, "shape")}
        if len(shapes) != 1:
            raise CollectError(f"{path}: arrays are reduced elementwise, but their shapes are {sorted(shapes)}")
    elif not isinstance(first, numbers.Number) and not hasattr(first, "dtype"):
        if all(equal(value, first) for value in values[1:]):
            return first
        raise CollectError(f"{path}: {how} needs numbers, arrays or tensors, got {type(first).__name__} {first!r:.60}")
    total = first * weights[0] if weighted else first + 0
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total + (value * weight if weighted else value)
    return total / sum(weights) if how == "mean" else total


def _alike(values: Sequence[Any], path: str) -> None:
    kinds = {type(value).__name__ for value in values}
    if len(kinds) > 1:
        raise CollectError(f"{path}: values of one shape are reduced, got {', '.join(sorted(kinds))}")
