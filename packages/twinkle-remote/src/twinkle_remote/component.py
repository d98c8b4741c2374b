"""A component as its callers know it: which class, on which ranks of which group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh

COMPONENT = "_twinkle_component"


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


def component_of(value: object) -> Component | None:
    """The component that a handle, or a component of this process, stands for; None for anything else."""
    try:
        return cast("Component | None", object.__getattribute__(value, COMPONENT))
    except AttributeError:
        return None


def is_handle(value: object) -> bool:
    """Whether a value is a handle rather than the component itself."""
    return getattr(type(value), "__twinkle_handle__", False) is True
