"""Values of no known type: which may hold rows, and are refused where rows are divided or joined."""

from __future__ import annotations

import enum
import functools
import os
import pickle
import sys
import types
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.component import is_component_type
from twinkle_remote.values.attributes import attributes_of
from twinkle_remote.values.columns import columns

if TYPE_CHECKING:
    from collections.abc import Callable

_WITHOUT_ROWS = (
    str,
    bytes,
    bytearray,
    type,
    slice,
    enum.Enum,
    os.PathLike,
    BaseException,
    functools.partial,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    types.GenericAlias,
    types.UnionType,
)
_WITHOUT_ROWS_BY_NAME = {
    ("numpy", "dtype"),
    ("twinkle_mesh", "DeviceGroup"),
    ("twinkle_mesh", "DeviceMesh"),
    ("typing", "_GenericAlias"),
}
_SAID = {
    "__iter__": "is iterable",
    "__next__": "is iterable",
    "__aiter__": "is iterable",
    "__len__": "has a length",
    "__getitem__": "has items",
    "__array__": "is an array to others",
    "__array_interface__": "is an array to others",
    "__dlpack__": "is a tensor to others",
    "__arrow_c_array__": "is an array to others",
    "__arrow_c_stream__": "is a table to others",
    "__dataframe__": "is a frame to others",
}
_HANDLES = frozenset({"io", "_io", "tempfile"})  # modules whose iterators are open files
_DEPTH = 4
_once: dict[type, bool] = {}
_kinds: dict[type, str | None] = {}


def runs_once(kind: type) -> bool:
    """Whether a type is an iterator of Python itself, which can be read once only, and by one reader."""
    try:
        return _once[kind]
    except KeyError:
        return _once.setdefault(kind, _is_iterator(kind))


def _is_iterator(kind: type) -> bool:
    if not issubclass(kind, Iterator | AsyncIterator):
        return False
    module = kind.__module__.partition(".")[0]
    return module in sys.stdlib_module_names and module not in _HANDLES


def without_rows(kind: type) -> bool:
    """Whether values of a type have no rows although they have a length, items or fields: texts, types, functions."""
    if issubclass(kind, _WITHOUT_ROWS) or is_component_type(kind):
        return True
    return any((base.__module__.partition(".")[0], base.__name__) in _WITHOUT_ROWS_BY_NAME for base in kind.__mro__)


def is_text_of_bytes(value: object) -> bool:
    """Whether a value is a view of bytes or a bytearray, which are one text; a view of anything else may be rows."""
    if type(value) is not memoryview:
        return False
    return isinstance(value.obj, bytes | bytearray) and value.format == "B" and value.ndim == 1


def row_protocol(kind: type) -> str | None:
    """The member of rows that values of a type without splitter and columns have; None if there is none."""
    try:
        return _kinds[kind]
    except KeyError:
        return _kinds.setdefault(kind, _find(kind))


def _find(kind: type) -> str | None:
    if without_rows(kind):
        return None
    if issubclass(kind, pickle.PickleBuffer):
        return "is a buffer"
    names = {name for base in kind.__mro__ for name, own in vars(base).items() if own is not None}
    if {"__len__", "__getitem__"} <= names:
        return "has a length and items by index"
    return next((said for name, said in _SAID.items() if name in names), None)


def refuse(value: object, path: str, why: str) -> DispatchError:
    """The error that a value of no known type is not divided."""
    kind = type(value)
    name = kind.__name__
    return DispatchError(
        f"{path} is a {kind.__module__}.{name}, which {why}, but how its rows are cut and "
        f"joined is not known: pass Replicate(value) to send it whole, name what is split with split=(...), pass a "
        f"list or an array, or teach it with register_splitter({name}, splitter)"
    )


def field_with_rows(value: object, has_rows: Callable[[object], bool]) -> str | None:
    """The path of an attribute that holds rows, at some depth; None if there is none, or the value has no rows at all.

    Args:
        value: An object without splitter, columns and protocol of rows.
        has_rows: Whether a value has rows, or looks as if it had some.
    """
    return _field(value, has_rows, {id(value)}, _DEPTH)


def _field(value: object, has_rows: Callable[[object], bool], seen: set[int], depth: int) -> str | None:
    if without_rows(type(value)):
        return None
    left: list[tuple[str, object]] = []
    for name, own in attributes_of(value):
        if has_rows(own):
            return f".{name}"
        left.append((name, own))
    for name, own in left if depth else ():
        parts = columns(own)
        for key, part in [("", own)] if parts is None else [(f"[{key!r}]", part) for key, part in parts.items()]:
            if id(part) in seen:
                continue
            seen.add(id(part))
            found = _field(part, has_rows, seen, depth - 1)
            if found is not None:
                return f".{name}{key}{found}"
    return None


def forget_kinds() -> None:
    """Forget what was found of types, because a splitter was registered."""
    _kinds.clear()
