"""The components that clients built, by tenant: what a handle's ids stand for, and how a handle is described."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from twinkle_http.registered import register_annotated
from twinkle_http.server.requests.body import RefusedError, unknown
from twinkle_remote.backends.serving import GROUP, INSTANCE, MESH, declared_keywords
from twinkle_remote.errors import PlacementError
from twinkle_remote.protocol import component_of, is_component_type
from twinkle_remote.values import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twinkle_remote.protocol import Component


@dataclass(frozen=True, slots=True)
class ServedComponent:
    """A component of a tenant.

    Attributes:
        cls: Its class.
        value: Its handle; the object itself, if the session builds components in this process.
    """

    cls: type
    value: Any


class ServedClasses:
    """The classes that clients may build and call.

    Args:
        classes: Remote classes.

    Raises:
        TypeError: One is no remote class.
        ValueError: Two have the same name.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self.by_name: dict[str, type] = {}
        for cls in classes:
            if not is_component_type(cls):
                raise TypeError(f"serve takes remote classes, not {cls!r:.80}: decorate it with @remote_class()")
            if self.by_name.setdefault(name_of(cls), cls) is not cls:
                raise ValueError(f"two served classes have the name {name_of(cls)!r}")
            register_annotated(cls)
        if not self.by_name:
            raise ValueError("serve takes at least one class")

    def find(self, name: str) -> type:
        """A served class by its name, with or without its module.

        Raises:
            RefusedError: It is not served, or several have that name.
        """
        found = self.by_name.get(name)
        if found is None:
            short = name.rpartition(".")[2]
            alike = [cls for cls in self.by_name.values() if cls.__qualname__.rpartition(".")[2] == short]
            in_program = "." not in name or any("." not in known for known in self.by_name)
            found = alike[0] if len(alike) == 1 and in_program else None
        if found is None:
            raise RefusedError(
                403,
                f"{name[:120]!a} is not served here; served are {', '.join(sorted(self.by_name))}",
                "NotServed",
            )
        return found


class Components:
    """The components of all tenants."""

    def __init__(self) -> None:
        self._served: dict[tuple[str, str, str], ServedComponent] = {}
        self._reserved: set[tuple[str, str, str]] = set()
        self._lock = Lock()
        self._names: dict[tuple[str, str, str], tuple[str, str]] = {}  # the client's ids, by the session's

    def reserve(self, tenant: str, group: str, instance: str) -> None:
        """Take ids for a component that is being built, until it is added or given up.

        Raises:
            PlacementError: The tenant has a component with these ids, or builds one.
        """
        key = tenant, group, instance
        with self._lock:
            if key in self._served or key in self._reserved:
                raise PlacementError(f"instance_id={instance!r} is taken on group {group!r}: give another one")
            self._reserved.add(key)

    def give_up(self, tenant: str, group: str, instance: str) -> None:
        """Free the ids of a component that was not built."""
        with self._lock:
            self._reserved.discard((tenant, group, instance))

    def add(self, tenant: str, group: str, instance: str, served: ServedComponent) -> None:
        """Remember a component by its client's ids."""
        with self._lock:
            self._served[tenant, group, instance] = served
            self._reserved.discard((tenant, group, instance))
        component = component_of(served.value)
        if component is not None:
            self._names[tenant, component.group, component.instance] = group, instance

    def find(self, tenant: str, group: object, instance: object) -> ServedComponent:
        """A tenant's component.

        Raises:
            RefusedError: The tenant has none with these ids.
        """
        found = self._served.get((tenant, str(group), str(instance)))
        if found is None:
            raise unknown("component", f"{group}/{instance}")
        return found

    def in_group(self, tenant: str, group: str) -> Component:
        """A component of a tenant in a group, the largest.

        Raises:
            RefusedError: The tenant has none there.
        """
        own = [one for (of, name, _), one in tuple(self._served.items()) if (of, name) == (tenant, group)]
        found = [component for one in own if (component := component_of(one.value)) is not None]
        if not found:
            raise unknown("component", f"{group}/...")
        return max(found, key=lambda component: len(component.ranks))

    def remove(self, tenant: str, group: str, instance: str) -> ServedComponent | None:
        """Forget a component."""
        found = self._served.pop((tenant, group, instance), None)
        component = None if found is None else component_of(found.value)
        if component is not None:
            self._names.pop((tenant, component.group, component.instance), None)
        return found

    def describer(self, tenant: str) -> Callable[[Any, Callable[[Any], Any]], list[Any] | None]:
        """Describes a tenant's handles for the encoder."""

        def node(value: Any, part: Callable[[Any], Any]) -> list[Any] | None:
            component = component_of(value)
            if component is None:
                return None
            group, instance = self._ids(tenant, component, value)
            mesh = None if component.mesh is None else part(component.mesh)
            cls = self._served[tenant, group, instance].cls
            return ["handle", name_of(cls), group, instance, mesh, part(list(component.ranks))]

        return node

    def _ids(self, tenant: str, component: Component, value: Any) -> tuple[str, str]:
        """The ids of a component; one that a worker built is given to the tenant who gets its handle."""
        key = tenant, component.group, component.instance
        if key not in self._names:
            cls = next(cls for cls in type(value).__mro__ if cls.__name__ == component.name)
            self.add(tenant, component.group, component.instance, ServedComponent(cls, value))
        return self._names[key]


def placement(cls: type, kwargs: Mapping[str, Any], group: str, mesh: Any) -> dict[str, Any]:
    """The keywords of a constructor, with those of placement; the id is the session's unless the class takes one."""
    place = {GROUP: group} if mesh is None else {GROUP: group, MESH: mesh}
    own = kwargs if INSTANCE in declared_keywords(cls) else {key: kwargs[key] for key in kwargs if key != INSTANCE}
    return {**own, **place}
