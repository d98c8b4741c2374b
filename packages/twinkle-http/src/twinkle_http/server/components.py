"""The components that clients built, by tenant: what a handle's ids stand for, and how a handle is described."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from twinkle_http.server.gate import RefusedError, unknown
from twinkle_http.types import register_annotated
from twinkle_http.wire import encode, encoded_error
from twinkle_remote.backends.serving import GROUP, INSTANCE, declared_keywords
from twinkle_remote.errors import PlacementError
from twinkle_remote.protocol import component_of, is_component_type
from twinkle_remote.rows import TYPES, name_of

Key: TypeAlias = tuple[str, str, str]
"""Tenant, group and id of a component, as its client chose them."""

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twinkle_http.messages import WireMessage


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
    """The classes that clients may build and call, and live components that every client may call.

    Args:
        served: Remote classes, and components of the running session.

    Attributes:
        live: The components by group and id.

    Raises:
        TypeError: One is neither.
        ValueError: Two classes have the same name.
    """

    def __init__(self, served: Iterable[object]) -> None:
        self.by_name: dict[str, type] = {}
        self.live: dict[tuple[str, str], ServedComponent] = {}
        for one in served:
            cls, component = one, component_of(one)
            if component is not None:
                cls = class_of(one)
                self.live[component.group, component.instance] = ServedComponent(cls, one)
            if not isinstance(cls, type) or not is_component_type(cls):
                raise TypeError(
                    f"serve takes remote classes and components, not {one!r:.80}: decorate it with @remote_class()"
                )
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


def class_of(value: object) -> type:
    """The class of a component, also of its handle."""
    component = component_of(value)
    return next(cls for cls in type(value).__mro__ if component is not None and cls.__name__ == component.name)


class Components:
    """The components of all tenants.

    Args:
        live: Those that belong to the session, by group and id: every tenant finds them, and none releases them.

    Attributes:
        live: As given.
    """

    def __init__(self, live: Mapping[tuple[str, str], ServedComponent]) -> None:
        self.live = live
        self._served: dict[Key, ServedComponent] = {}
        self._reserved: set[Key] = set()
        self._lock = Lock()
        self._names: dict[Key, tuple[str, str]] = {}  # the client's ids, by the session's

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

    def settle(self, key: Key, cls: type, value: object) -> None:
        """Remember a component by its tenant and the ids that its client chose; free them if it is None."""
        component = component_of(value)
        with self._lock:
            self._reserved.discard(key)
            if component is not None:
                self._served[key] = ServedComponent(cls, value)
                self._names[key[0], component.group, component.instance] = key[1:]

    def find(self, tenant: str, group: object, instance: object) -> ServedComponent:
        """A tenant's component.

        Raises:
            RefusedError: The tenant has none with these ids.
        """
        place = str(group), str(instance)
        found = self._served.get((tenant, *place)) or self.live.get(place)
        if found is None:
            raise unknown("component", f"{group}/{instance}")
        return found

    def named(self, tenant: str, instance: str, cls: type | None = None) -> tuple[Key, ServedComponent]:
        """A tenant's component by its id alone, in any group, with its key.

        Raises:
            RefusedError: The tenant has none with this id, or it is of another class.
        """
        shared = [((tenant, *place), served) for place, served in self.live.items()]
        for key, served in (*tuple(self._served.items()), *shared):
            if (key[0], key[2]) == (tenant, instance) and cls in (None, served.cls):
                return key, served
        raise unknown("component", instance)

    def remove(self, tenant: str, group: str, instance: str) -> ServedComponent | None:
        """Forget a component."""
        found = self._served.pop((tenant, group, instance), None)
        component = None if found is None else component_of(found.value)
        if component is not None:
            self._names.pop((tenant, component.group, component.instance), None)
        return found

    def encoded(self, tenant: str, value: object, what: str) -> WireMessage:
        """A value as a tenant gets it: components in it are handles by its ids.

        Raises:
            WireTypeError: It cannot be sent.
        """
        return encode(value, TYPES, what=what, named=partial(self._handle, tenant))

    def error(self, tenant: str, error: BaseException) -> bytes:
        """An error as a tenant gets it."""
        return encoded_error(error, TYPES, partial(self._handle, tenant))

    def _handle(self, tenant: str, value: Any, part: object) -> list[Any] | None:
        if component_of(value) is None:
            return None
        group, instance = self.ids(tenant, value)
        return ["handle", name_of(self.find(tenant, group, instance).cls), group, instance]

    def ids(self, tenant: str, value: Any) -> tuple[str, str]:
        """The ids of a component; one that a worker built is given to the tenant who gets its handle."""
        component = component_of(value)
        assert component is not None
        key = tenant, component.group, component.instance
        if key[1:] in self.live:
            return key[1:]
        if key not in self._names:
            self.settle(key, class_of(value), value)
        return self._names[key]


def placement(cls: type, kwargs: Mapping[str, Any], group: str) -> dict[str, Any]:
    """The keywords of a constructor, with the group; the id is the session's unless the class takes one."""
    own = kwargs if INSTANCE in declared_keywords(cls) else {key: kwargs[key] for key in kwargs if key != INSTANCE}
    return {**own, GROUP: group}
