"""One step down a nested value: the same value with other parts, or the value itself where no part changes."""

from __future__ import annotations

from itertools import chain, compress
from typing import TYPE_CHECKING, Any, Final

from twinkle_remote.values.columns import columns, with_parts
from twinkle_remote.values.rows import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CONTAINERS: Final = frozenset({list, tuple, dict})
_DEPTH: Final = 8


def is_plain(values: list[Any] | tuple[Any, ...]) -> bool:
    """Whether lists, tuples and dicts are all that a list or tuple holds, and numbers and texts all that these hold.

    It looks at the types of one level after the other, without a step of Python for each value, because lists have many
    rows. A list that contains itself, or is nested deeply, is not plain.
    """
    level = values
    for _ in range(_DEPTH):
        kinds = set(map(type, level))
        if kinds <= PLAIN:
            return True
        if not kinds <= PLAIN | _CONTAINERS:
            return False
        inner = (
            list(level) if kinds <= _CONTAINERS else [*compress(level, map(_CONTAINERS.__contains__, map(type, level)))]
        )
        lists = [part for part in inner if type(part) is not dict] if dict in kinds else inner
        dicts = [part for part in inner if type(part) is dict] if dict in kinds else []
        if not dicts and PLAIN.issuperset(map(type, chain.from_iterable(lists))):
            return True
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, dicts))]
    return False


def map_parts(value: Any, change: Callable[[Any], Any], leaf: Callable[[Any], Any] | None = None) -> Any:
    """A list, a tuple or a value with columns, with each part changed.

    A recursive walk passes itself as `change`. It checks for its own replacements and for lists of plain values first,
    to save one call per element.

    Args:
        value: Any value; never mutated.
        change: Makes the new part from the old one; returns an unchanged part itself.
        leaf: Makes the result for a value without parts; None for the value itself.

    Raises:
        DispatchError: A part changed, and the value is a mapping that cannot be made again.
    """
    kind = type(value)
    if kind is not list and kind is not tuple:
        return map_columns(value, change, leaf)
    fresh = [change(item) for item in value]
    if all(new is old for new, old in zip(fresh, value, strict=True)):
        return value
    return fresh if kind is list else tuple(fresh)


def map_columns(
    value: Any,
    change: Callable[[Any], Any],
    leaf: Callable[[Any], Any] | None = None,
    make: Callable[[Any, Sequence[object]], Any] = with_parts,
) -> Any:
    """A mapping, dataclass or named tuple with each part changed; as `map_parts`, but lists and tuples have no parts.

    Args:
        value: As for `map_parts`.
        change: As for `map_parts`.
        leaf: As for `map_parts`.
        make: Makes the new value: `with_parts` for the same rows in another form, `rebuild` for other rows.

    Raises:
        DispatchError: As for `map_parts`, and as `make`.
    """
    parts = columns(value)
    if parts is None:
        return value if leaf is None else leaf(value)
    fresh = [change(part) for part in parts.values()]
    return value if all(new is old for new, old in zip(fresh, parts.values(), strict=True)) else make(value, fresh)
