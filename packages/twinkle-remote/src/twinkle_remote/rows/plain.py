"""Walks of nested values: one step down, and copies for receivers in one process."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import TYPE_CHECKING, Any, Final

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.messages import component_of, components_here
from twinkle_remote.rows.cut import PLAIN
from twinkle_remote.rows.libraries import read_only
from twinkle_remote.rows.records import parts_of, with_parts
from twinkle_remote.rows.row_types import sequence_like
from twinkle_remote.rows.unknown import is_tensor_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UNCHANGING: Final = frozenset({"pyarrow", "polars"})
"""Libraries whose values do not change, and may be large."""


def map_parts(value: Any, change: Callable[[Any], Any], leaf: Callable[[Any], Any] | None = None) -> Any:
    """A list, a tuple or a record, with each part changed; the value itself where no part changes.

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
        return map_record(value, change, leaf)
    fresh = [change(item) for item in value]
    if all(new is old for new, old in zip(fresh, value, strict=True)):
        return value
    return fresh if kind is list else tuple(fresh)


def map_record(
    value: Any,
    change: Callable[[Any], Any],
    leaf: Callable[[Any], Any] | None = None,
    make: Callable[[Any, Sequence[object]], Any] = with_parts,
) -> Any:
    """A record with each part changed; as `map_parts`, but a list has no parts.

    Args:
        value: As for `map_parts`.
        change: As for `map_parts`.
        leaf: As for `map_parts`.
        make: Makes the new value: `with_parts` for the same rows in another form, `rebuild` for other rows.

    Raises:
        DispatchError: As for `map_parts`, and as `make`.
    """
    parts = parts_of(value)
    if parts is None:
        return value if leaf is None else leaf(value)
    fresh = [change(part) for part in parts.values()]
    return value if all(new is old for new, old in zip(fresh, parts.values(), strict=True)) else make(value, fresh)


def snapshot(value: Any, *, keep: bool = False, frozen: bool = True, leave: frozenset[Any] = PLAIN) -> Any:
    """A copy for the receiver: writes to it are not visible elsewhere.

    Everything but components is copied, at any depth, also modules, sets and generators of random numbers. An array
    becomes a read-only view, like an array from an object store. What cannot be copied, such as a lock, is shared:
    another process could not have it at all.

    Args:
        value: An argument or a result; never mutated.
        keep: Copy arrays as well, because their owner may write to them later.
        frozen: Arrays are read-only.
        leave: Types whose values stay themselves, the plain ones among them.
    """
    return _Copies(keep, frozen, leave).of(value)


class _Copies:
    """The copies of one value; a leaf that stands in it twice is copied once."""

    def __init__(self, keep: bool, frozen: bool, leave: frozenset[Any]) -> None:
        self._keep, self._frozen, self._leave = keep, frozen, leave
        self._has_objects = False
        self._made: dict[int, Any] = {}  # also the memo of `copy.deepcopy`
        self._alive: list[Any] = []  # what was copied: an id is one object's while that is there

    def of(self, value: Any) -> Any:
        """The receiver's copy of a value."""
        kind = type(value)
        if kind in self._leave:
            return value
        if kind is list or kind is tuple:
            if PLAIN.issuperset(map(type, value)):
                return value if kind is tuple else value.copy()
            return kind([self.of(item) for item in value])
        parts = parts_of(value)
        if parts is not None:
            try:
                return with_parts(value, [self.of(part) for part in parts.values()])
            except DispatchError:  # a mapping that cannot be copied and has no rows is like any other object
                return self._object(value)
        if isinstance(value, list):
            made = sequence_like(value, [self.of(item) for item in list.__iter__(value)])
            for name, part in getattr(value, "__dict__", {}).items():
                vars(made)[name] = self.of(part)
            return made
        if id(value) not in self._made:
            self._alive.append(value)
            self._made[id(value)] = self._leaf(value)
        return self._made[id(value)]

    def _leaf(self, value: Any) -> Any:
        """The receiver's copy of an array, a tensor, a frame or another object."""
        numpy, torch = map(sys.modules.get, ("numpy", "torch"))
        if numpy is not None and type(value) is numpy.ndarray:
            own = value.copy() if self._keep else value.view()
            return read_only(own) if self._frozen else own
        if torch is not None and isinstance(value, torch.Tensor):
            return _own_tensor(torch, value)
        if is_tensor_collection(type(value)):
            return value.clone()
        return self._object(value)

    def _object(self, value: Any) -> Any:
        if component_of(value) is not None or type(value).__module__.partition(".")[0] in _UNCHANGING:
            return value
        if not self._has_objects:
            self._made.update(components_here())
            self._has_objects = True
        known = len(self._made)
        try:
            return copy.deepcopy(value, self._made)
        except DispatchError:  # a lazy result that no caller has found: no process could be sent it
            raise
        except Exception:  # what a copy of a user's type may raise
            while len(self._made) > known:
                self._made.popitem()  # halves of copies: no other value may find them
        try:
            return pickle.loads(pickle.dumps(value, protocol=5))  # a module that holds a result with its graph
        except Exception:  # no process could send it
            return value


def _own_tensor(torch: Any, value: Any) -> Any:
    own = value.detach().clone()  # without the graph that made it, as it arrives in another process
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(own, requires_grad=value.requires_grad)
    own.requires_grad_(value.requires_grad)
    if type(own) is type(value) is not torch.Tensor:
        own.__dict__.update(value.__dict__)
    return own
