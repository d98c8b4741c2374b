"""Copies of arguments and results for workers in one process: they share no more than separate processes do."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.component import component_of, components_here
from twinkle_remote.values.attributes import attributes_of, set_attributes
from twinkle_remote.values.columns import columns, is_tensor_collection, with_parts
from twinkle_remote.values.rows import PLAIN
from twinkle_remote.values.sequences import sequence_like

_UNCHANGING = frozenset({"pyarrow", "polars"})
"""Libraries whose values do not change, and may be large."""


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
        parts = columns(value)
        if parts is not None:
            try:
                return with_parts(value, [self.of(part) for part in parts.values()])
            except DispatchError:  # a mapping that cannot be copied and has no rows is like any other object
                return self._object(value)
        if isinstance(value, list | tuple):
            own = {name: self.of(part) for name, part in attributes_of(value)}
            base: Any = list if isinstance(value, list) else tuple
            return sequence_like(value, [self.of(item) for item in base.__iter__(value)], own)
        if id(value) not in self._made:
            self._alive.append(value)
            self._made[id(value)] = self._leaf(value)
        return self._made[id(value)]

    def _leaf(self, value: Any) -> Any:
        """The receiver's copy of an array, a tensor, a frame or another object."""
        numpy, torch, pandas = map(sys.modules.get, ("numpy", "torch", "pandas"))
        if numpy is not None and type(value) is numpy.ndarray:
            own = value.copy() if self._keep else value.view()
            return read_only(own) if self._frozen else own
        if torch is not None and isinstance(value, torch.Tensor):
            own = _own_tensor(torch, value)
            if type(own) is type(value) is not torch.Tensor:
                set_attributes(own, value.__dict__)
            return own
        if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series):
            return value.copy()
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
        except Exception:  # what a copy of a user's type may raise
            while len(self._made) > known:
                self._made.popitem()  # halves of copies: no other value may find them
        return _by_pickle(value)


def _by_pickle(value: Any) -> Any:
    """A copy as another process would have it, of what `copy` refuses: a module that holds a result with its graph."""
    try:
        return pickle.loads(pickle.dumps(value, protocol=5))
    except Exception:  # no process could send it
        return value


def read_only(array: Any) -> Any:
    """An array of one's own that cannot be written to any more."""
    array.flags.writeable = False
    return array


def _own_tensor(torch: Any, value: Any) -> Any:
    own = value.detach().clone()  # without the graph that made it, as it arrives in another process
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(own, requires_grad=value.requires_grad)
    return own.requires_grad_(value.requires_grad)
