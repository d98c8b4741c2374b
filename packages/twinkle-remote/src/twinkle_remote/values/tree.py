"""One step down a nested value: the same value with other parts, or the value itself where no part changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.values.columns import columns, rebuild

if TYPE_CHECKING:
    from collections.abc import Callable


def map_parts(value: Any, change: Callable[[Any], Any], leaf: Callable[[Any], Any] | None = None) -> Any:
    """A list, a tuple or a value with columns, with each part changed.

    A walk calls this with itself as `change`, after it has looked for what it replaces and for lists of plain values,
    which are not worth a call for each.

    Args:
        value: Any value; never mutated.
        change: Makes the new part of an old one; a part that does not change comes back as it is.
        leaf: Makes the result where the value has no parts; None for the value itself.

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


def map_columns(value: Any, change: Callable[[Any], Any], leaf: Callable[[Any], Any] | None = None) -> Any:
    """A mapping, dataclass or named tuple with each part changed; as `map_parts`, but lists and tuples have no parts.

    Args:
        value: As for `map_parts`, and so are the others.
        change: As there.
        leaf: As there.

    Raises:
        DispatchError: As there.
    """
    parts = columns(value)
    if parts is None:
        return value if leaf is None else leaf(value)
    fresh = [change(part) for part in parts.values()]
    return value if all(new is old for new, old in zip(fresh, parts.values(), strict=True)) else rebuild(value, fresh)
