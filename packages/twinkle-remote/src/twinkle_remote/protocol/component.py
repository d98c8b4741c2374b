"""A component as its callers know it: which class, on which ranks of which group."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh

COMPONENT = "_twinkle_component"
REMOTE = "__twinkle_remote__"


@dataclass(frozen=True, slots=True)
class Component:
    """A component on its group, as handles carry it.

    Attributes:
        group: Name of the group.
        instance: Id within the group.
        name: Name of the class.
        ranks: Ranks that hold it, ascending.
        mesh: Its mesh, or None.
    """

    group: str
    instance: str
    name: str
    ranks: tuple[int, ...]
    mesh: DeviceMesh | None


class HandleBase:
    """Base of every handle's class, and of nothing else."""

    __slots__ = ()


# Beside the objects, not on them: a copy of a component is no component, and a class may have slots.
_in_process: dict[int, tuple[weakref.ref[object], Component]] = {}


def remember(value: object, component: Component) -> None:
    """Note that an object of this process is a component, for as long as it lives."""
    key = id(value)

    def forget(_: weakref.ref[object]) -> None:
        _in_process.pop(key, None)

    _in_process[key] = weakref.ref(value, forget), component


def forget_all() -> None:
    """Make the components of this process plain objects again, as `shutdown` does."""
    _in_process.clear()


def component_of(value: object) -> Component | None:
    """The component that a handle, or a component of this process, stands for; None for anything else."""
    if is_handle(value):
        return cast("Component", object.__getattribute__(value, COMPONENT))
    entry = _in_process.get(id(value))
    return entry[1] if entry is not None and entry[0]() is value else None


def is_handle(value: object) -> bool:
    """Whether a value is a handle rather than the component itself."""
    return issubclass(type(value), HandleBase)


def is_component_type(kind: type) -> bool:
    """Whether objects of a class are components or handles, which are never taken apart as data."""
    return getattr(kind, REMOTE, None) is not None
