"""Copies of arguments and results for workers in one process: they share no more than separate processes do."""

from __future__ import annotations

import sys
from typing import Any

from twinkle_remote.errors import DispatchError
from twinkle_remote.values.attributes import attributes_of, set_attributes
from twinkle_remote.values.columns import columns, is_tensor_collection, with_parts
from twinkle_remote.values.rows import PLAIN
from twinkle_remote.values.sequences import sequence_like


def snapshot(value: Any, *, keep: bool = False) -> Any:
    """A copy for the receiver: writes to it are not visible elsewhere.

    Lists, tuples, mappings, dataclasses, tensors and pandas frames are copied at any depth, other objects are not.
    An array becomes a read-only view, like an array from an object store.

    Args:
        value: An argument or a result; never mutated.
        keep: Copy arrays as well, because their owner may write to them later.
    """
    return _snapshot(value, keep, {})


def _snapshot(value: Any, keep: bool, copies: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is list or kind is tuple:
        if PLAIN.issuperset(map(type, value)):
            return value if kind is tuple else value.copy()
        return kind([_snapshot(item, keep, copies) for item in value])
    parts = columns(value)
    if parts is not None:
        try:
            return with_parts(value, [_snapshot(part, keep, copies) for part in parts.values()])
        except DispatchError:  # a mapping that cannot be copied and has no rows is like any other object
            return value
    if isinstance(value, list | tuple):
        own = {name: _snapshot(part, keep, copies) for name, part in attributes_of(value)}
        base: Any = list if isinstance(value, list) else tuple
        return sequence_like(value, [_snapshot(item, keep, copies) for item in base.__iter__(value)], own)
    if id(value) not in copies:
        copies[id(value)] = _own(value, keep)
    return copies[id(value)]


def _own(value: Any, keep: bool) -> Any:
    """The receiver's copy of a leaf: an array, tensor or frame; any other value itself."""
    numpy, torch, pandas = map(sys.modules.get, ("numpy", "torch", "pandas"))
    if numpy is not None and type(value) is numpy.ndarray:
        return read_only(value.copy() if keep else value.view())
    if torch is not None and isinstance(value, torch.Tensor):
        own = _own_tensor(torch, value)
        if type(own) is type(value) is not torch.Tensor:
            set_attributes(own, value.__dict__)
        return own
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series):
        return value.copy()
    return value.clone() if is_tensor_collection(type(value)) else value


def read_only(array: Any) -> Any:
    """An array of one's own that cannot be written to any more."""
    array.flags.writeable = False
    return array


def _own_tensor(torch: Any, value: Any) -> Any:
    own = value.detach().clone()  # without the graph that made it, as it arrives in another process
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(own, requires_grad=value.requires_grad)
    return own.requires_grad_(value.requires_grad)
