"""Attributes that an object has outside of its items or fields: which of them its shares and joined values have too.

A value that was cached for the whole is not true for a share. A cached property is left out, and computed again. Of
another private attribute, and of one that holds a container, nobody can know whether it describes the whole: it is
refused.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections import UserDict
from typing import TYPE_CHECKING, Any, TypeVar, cast

from twinkle_remote.errors import DispatchError
from twinkle_remote.failures.bare import bare_new

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

T = TypeVar("T")
_TEXTS = (str, bytes, bytearray)
_METHODS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    staticmethod,
    classmethod,
)
_PLAIN_NEW = (object.__new__, dict.__new__)
_MISSING = object()
_slots: dict[type, Sequence[str]] = {}


def attributes_of(value: object) -> Iterator[tuple[str, object]]:
    """The attributes that are set on an object itself: those of its `__dict__` and its slots."""
    yield from getattr(value, "__dict__", {}).items()
    for name in _slots_of(type(value)):
        own = getattr(value, name, _MISSING)
        if own is not _MISSING:
            yield name, own


def _slots_of(kind: type) -> Sequence[str]:
    if kind not in _slots:
        found = (name for base in kind.__mro__ for name, own in vars(base).items() if _is_slot(own))
        _slots[kind] = tuple(dict.fromkeys(found))
    return _slots[kind]


def _is_slot(own: object) -> bool:
    return isinstance(own, types.MemberDescriptorType)


def is_cache(kind: type, name: str) -> bool:
    """Whether an attribute is where a property of the type keeps what it has computed once.

    Such a property has `__get__`, like functools.cached_property, and no `__set__`: the attribute hides it.
    """
    own = inspect.getattr_static(kind, name, None)
    return hasattr(type(own), "__get__") and not hasattr(type(own), "__set__") and not isinstance(own, _METHODS)


def carried(value: object, known: Container[str] = (), *, constants: bool = True) -> dict[str, object]:
    """The attributes of an object that its shares have too.

    Args:
        value: The object.
        known: Names of its fields, which are not looked at.
        constants: Public attributes without a container stay; otherwise they are refused too.

    Raises:
        DispatchError: An attribute may describe the whole.
    """
    kept = {}
    kind = type(value)
    for name, own in attributes_of(value):
        if name in known or is_cache(kind, name) or own is inspect.getattr_static(kind, name, _MISSING):
            continue
        if own is None or (constants and not name.startswith("_") and not _is_container(own)):
            kept[name] = own
            continue
        raise DispatchError(
            f"a {kind.__name__} has {name}={own!r:.60} with its rows, and whether that is true of a part of the rows "
            f"is not known: make it a cached_property, leave it out, pass Replicate(value) to send it whole, or teach "
            f"the type with register_splitter({kind.__name__}, splitter)"
        )
    return kept


def _is_container(value: object) -> bool:
    kind = type(value)
    return not isinstance(value, _TEXTS) and any(
        getattr(kind, name, None) is not None for name in ("__len__", "__iter__", "__getitem__")
    )


def set_attributes(value: object, attributes: dict[str, object]) -> None:
    """Set attributes on an object of any type, also on a frozen one."""
    for name, own in attributes.items():
        object.__setattr__(value, name, own)


def twin_of(value: T) -> T:
    """A second object with the attributes of the first, which can be written to without a change of the first.

    It is made without what the type does by itself, because `__copy__`, `__new__` or `__reduce__` may return the same
    object, or one that shares attributes with others. A dict has no items then. A type in C whose state is not in
    attributes copies itself.

    Raises:
        DispatchError: A type in C returned the same object.
    """
    kind: Any = type(value)
    new = bare_new(kind)
    if new in _PLAIN_NEW:
        twin = new(kind)
        set_attributes(twin, dict(attributes_of(value)))
        if isinstance(twin, UserDict):
            twin.data = {}
        return cast("T", twin)
    twin = copy.copy(value)
    if twin is value or type(twin) is not kind:
        raise DispatchError(
            f"a {kind.__name__} holds rows, and its copy is the object itself: pass a dict, Replicate(value) to send "
            f"it whole, or teach the type with register_splitter({kind.__name__}, splitter)"
        )
    return twin


def common_attributes(values: Sequence[object]) -> dict[str, object]:
    """The attributes of a joined value: those that all parts have alike.

    Raises:
        DispatchError: An attribute may describe the whole of a part.
        ValueError: They differ.
    """
    return _common([carried(value) for value in values])


def finalized_attributes(made: object, values: Sequence[object]) -> dict[str, object]:
    """The attributes of a value joined from others of its type, which has set some by itself.

    Raises:
        DispatchError: Another attribute may describe the whole of a part.
        ValueError: They differ.
    """
    own = dict(attributes_of(made))
    _common([{name: part for name, part in attributes_of(value) if name in own} for value in values])
    return _common([carried(value, own) for value in values])


def common_constants(values: Sequence[object]) -> dict[str, object]:
    """The attributes without a container, which objects of the same rows have alike.

    Raises:
        ValueError: They differ.
    """
    return _common([{name: own for name, own in attributes_of(value) if not _is_container(own)} for value in values])


def _common(found: Sequence[dict[str, object]]) -> dict[str, object]:
    first = found[0]
    for other in found[1:]:
        if other.keys() != first.keys() or not all(_alike(other[name], own) for name, own in first.items()):
            raise ValueError(f"their attributes differ: one has {first!r:.80}, another {other!r:.80}")
    return first


def _alike(left: object, right: object) -> bool:
    try:
        return left is right or (type(left) is type(right) and bool(left == right or (left != left and right != right)))
    except Exception:  # a user's comparison may raise anything
        return False
