"""Values of no known type: which may hold rows, and are refused where rows are divided or joined."""

from __future__ import annotations

import enum
import functools
import os
import sys
import types
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.messages import is_component_type

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
_OF_ROWS = ("__iter__", "__next__", "__aiter__", "__len__", "__getitem__", "__array__", "__array_interface__")
_OF_TABLES = ("__dlpack__", "__arrow_c_array__", "__arrow_c_stream__", "__dataframe__")
_once: dict[type, bool] = {}
_members: dict[type, str | None] = {}
_HANDLES = frozenset({"io", "_io", "tempfile"})  # modules whose iterators are open files


def runs_once(kind: type) -> bool:
    """Whether a type is an iterator of Python itself, which can be read once only, and by one reader."""
    if kind not in _once:
        module = kind.__module__.partition(".")[0]
        iterates = issubclass(kind, Iterator | AsyncIterator)
        _once[kind] = iterates and module in sys.stdlib_module_names and module not in _HANDLES
    return _once[kind]


def is_tensor_collection(kind: type) -> bool:
    """Whether a type is TensorDict or a tensorclass: their rows are those of their batch size, not those of columns."""
    library: Any = sys.modules.get("tensordict")
    return library is not None and (issubclass(kind, library.TensorDictBase) or library.is_tensorclass(kind))


def without_rows(kind: type) -> bool:
    """Whether values of a type have no rows although they have a length, items or fields: texts, types, functions."""
    if issubclass(kind, _WITHOUT_ROWS) or is_component_type(kind):
        return True
    return any((base.__module__.partition(".")[0], base.__name__) in _WITHOUT_ROWS_BY_NAME for base in kind.__mro__)


def row_protocol(kind: type) -> str | None:
    """The member of rows that values of a type that is no row type and no record have; None if there is none."""
    if kind not in _members:
        names = {name for base in kind.__mro__ for name, own in vars(base).items() if own is not None}
        found = next((name for name in _OF_ROWS + _OF_TABLES if name in names), None)
        _members[kind] = None if without_rows(kind) else found
    return _members[kind]


def refuse(value: object, path: str, member: str) -> DispatchError:
    """The error that a value of no known type is not divided."""
    kind = type(value)
    name = kind.__name__
    return DispatchError(
        f"{path} is a {kind.__module__}.{name}, which looks as if it had rows ({member}), but how they are cut and "
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
