"""The identity of a component: its class, its group and its ranks."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Hashable

    from twinkle_mesh import DeviceMesh

ColumnsRead: TypeAlias = "tuple[tuple[str, tuple[Hashable, ...] | None], ...]"
COMPONENT = "_twinkle_component"
REMOTE = "__twinkle_remote__"


@dataclass(frozen=True, slots=True)
class Component:
    """The identity of a component, which its handles carry.

    Attributes:
        group: Name of the group.
        instance: Id within the group.
        name: Name of the class.
        ranks: Ranks that hold it, ascending.
        mesh: Its mesh, or None.
        off: The flags of its constructor that are False, of those that its functions name in `balance=`.
        reads: The columns that its functions read, by name, where `reads=` names them by the constructor's arguments;
            None for all columns.
    """

    group: str
    instance: str
    name: str
    ranks: tuple[int, ...]
    mesh: DeviceMesh | None
    off: frozenset[str] = frozenset()
    reads: ColumnsRead = ()


def same_component(one: Component, other: Component) -> bool:
    """Whether two name the same component, whichever of its ranks."""
    return (one.group, one.instance) == (other.group, other.instance)


class HandleBase:
    """Base of the handle classes only."""

    __slots__ = ()


# Kept outside of the objects: a copy of a component is not a component, and a class may have slots.
_in_process: dict[int, tuple[weakref.ref[object], Component]] = {}


def remember(value: object, component: Component) -> None:
    """Record that an object of this process is a component, until the object is deleted."""
    key = id(value)

    known = _in_process  # the name of a module is None when the interpreter ends
    known[key] = weakref.ref(value, lambda _: known.pop(key, None)), component


def forget_all() -> None:
    """Make the components of this process plain objects again, as `shutdown` does."""
    _in_process.clear()


_reads: dict[int, tuple[weakref.ref[object], ColumnsRead]] = {}


def remember_reads(value: object, reads: ColumnsRead) -> None:
    """Record the columns that the functions of an object of this process read, until the object is deleted."""
    key, known = id(value), _reads
    known[key] = weakref.ref(value, lambda _: known.pop(key, None)), reads


def reads_of(value: object, function: str) -> tuple[Hashable, ...] | None:
    """The columns that a function of an object reads by its constructor's arguments; None for all."""
    entry = _reads.get(id(value))
    return dict(entry[1]).get(function) if entry is not None and entry[0]() is value else None


def components_here() -> dict[int, object]:
    """The objects of this process that are components, by their ids."""
    found = {key: ref() for key, (ref, _) in list(_in_process.items())}
    return {key: value for key, value in found.items() if value is not None}


def component_of(value: object) -> Component | None:
    """The component of a handle, or of an object that was built in this process; None for other values."""
    if is_handle(value):
        return cast("Component", object.__getattribute__(value, COMPONENT))
    entry = _in_process.get(id(value))
    return entry[1] if entry is not None and entry[0]() is value else None


def is_handle(value: object) -> bool:
    """Whether a value is a handle and not the component itself."""
    return issubclass(type(value), HandleBase)


def is_component_type(kind: type) -> bool:
    """Whether a class is a remote class; its objects and handles are never split as data."""
    return getattr(kind, REMOTE, None) is not None
