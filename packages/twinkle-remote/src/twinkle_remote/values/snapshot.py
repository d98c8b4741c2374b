"""Containers that nobody else holds: what pickling gives every worker process, for workers that share one."""

from __future__ import annotations

from typing import Any

from twinkle_remote.values.columns import columns, rebuild
from twinkle_remote.values.rows import PLAIN


def snapshot(value: Any) -> Any:
    """A copy of the lists, tuples, dicts and dataclasses of a value; what they hold is the same.

    A method that pops from the dict that it was given, or returns the one that it will write to again, does no more to
    others than it would from another process. Arrays, tensors and other objects are not copied.
    """
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is list or kind is tuple:
        if PLAIN.issuperset(map(type, value)):
            return value if kind is tuple else value.copy()
        return kind(map(snapshot, value))
    parts = columns(value)
    return value if parts is None else rebuild(value, [snapshot(part) for part in parts.values()])
