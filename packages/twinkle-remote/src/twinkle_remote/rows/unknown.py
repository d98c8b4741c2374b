"""Values of no known type: which may hold rows, and are refused where rows are divided or joined."""

from __future__ import annotations

import enum
import functools
import os
import pickle
import sys
import types
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.call import is_component_type

if TYPE_CHECKING:
    from collections.abc import Container

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
    ("numpy", "generic"),
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
_once: dict[type, bool] = {}
_said: dict[type, str | None] = {}
_HANDLES = frozenset({"io", "_io", "tempfile"})  # modules whose iterators are open files


def runs_once(kind: type) -> bool:
    """Whether a type is an iterator of Python itself, which can be read once only, and by one reader."""
    if kind not in _once:
        _once[kind] = _is_iterator(kind)
    return _once[kind]


def _is_iterator(kind: type) -> bool:
    module = kind.__module__.partition(".")[0]
    return issubclass(kind, Iterator | AsyncIterator) and module in sys.stdlib_module_names and module not in _HANDLES


def is_tensor_collection(kind: type) -> bool:
    """Whether a type is TensorDict or a tensorclass: their rows are those of their batch size, not those of columns."""
    library: Any = sys.modules.get("tensordict")
    return library is not None and (issubclass(kind, library.TensorDictBase) or library.is_tensorclass(kind))


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
    """The member of rows that values of a type that is no row type and no record have; None if there is none."""
    if kind not in _said:
        _said[kind] = _find(kind)
    return _said[kind]


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
        f"list or an array, or teach it with register_rows({name}, ...)"
    )


def refuse_attributes(value: object, known: Container[str] = ()) -> None:
    """Refuse a list, array, tensor, tuple or dict of a subclass that has attributes of its own beside its rows.

    Args:
        value: The object.
        known: Columns that are no attributes of its own.

    Raises:
        DispatchError: It has some: whether they are true of a part of the rows is not known.
    """
    for name, own in getattr(value, "__dict__", {}).items():
        if own is not None and name not in known:
            kind = type(value).__name__
            raise DispatchError(
                f"a {kind} has {name}={own!r:.60} beside its rows, and whether it is true of some rows is not known: "
                "pass a plain list, array or dict, Replicate(value) to send it whole, or teach the type with "
                f"register_rows({kind}, ...)"
            )
