"""The served classes, and the components of all tenants: what a handle's ids stand for, and how one is described."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from twinkle_http.gate import RefusedError, unknown
from twinkle_http.types import register_annotated
from twinkle_http.wire import encode, encoded_error
from twinkle_remote.backends.serving import GROUP, INSTANCE, declared_keywords
from twinkle_remote.errors import NotInitializedError, PlacementError
from twinkle_remote.protocol import component_of, is_component_type
from twinkle_remote.rows import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from twinkle_http.wire import WireMessage

Key: TypeAlias = tuple[str, str, str]
"""Tenant, group and id of a component, as its client chose them."""


@dataclass(eq=False, slots=True)
class ServedComponent:
    """A component of a tenant.

    Attributes:
        value: Its handle; the object itself, if the session builds components in this process.
        asked: The time of the last request in JSON, in monotonic seconds, if it was built by one; else None.
        busy: Requests in JSON that it answers.
    """

    cls: type
    value: Any
    asked: float | None = None
    busy: int = 0


class Components:
    """The classes that clients may build and call, and their components.

    Args:
        served: Remote classes, and live components of the session: every tenant finds these, and none releases them.

    Attributes:
        classes: The served classes by name.
        live: The live components by group and id.

    Raises:
        TypeError: One is neither.
        ValueError: Two classes have the same name, or there is none.
    """

    def __init__(self, served: Iterable[object]) -> None:
        self.classes: dict[str, type] = {}
        self.live: dict[tuple[str, str], ServedComponent] = {}
        self._built: dict[Key, ServedComponent] = {}
        self._reserved: set[Key] = set()
        self._lock = Lock()
        self._names: dict[Key, tuple[str, str]] = {}  # the client's ids, by the session's
        for one in served:
            cls, component = one, component_of(one)
            if component is not None:
                cls = _class_of(one)
                self.live[component.group, component.instance] = ServedComponent(cls, one)
            if not isinstance(cls, type) or not is_component_type(cls):
                raise TypeError(
                    f"serve takes remote classes and components, not {one!r:.80}: decorate it with @remote_class()"
                )
            if self.classes.setdefault(name_of(cls), cls) is not cls:
                raise ValueError(f"two served classes have the name {name_of(cls)!r}")
            register_annotated(cls)
        if not self.classes:
            raise ValueError("serve takes at least one class")

    def served_class(self, name: str) -> type:
        """A served class by its name, without its module where one side has it in its `__main__`; or RefusedError."""
        in_main = ((known, cls) for known, cls in self.classes.items() if "." not in known or "." not in name)
        alike = [cls for known, cls in in_main if known.rpartition(".")[2] == name.rpartition(".")[2]]
        found = self.classes.get(name) or (alike[0] if len(alike) == 1 else None)
        if found is None:
            known = ", ".join(sorted(self.classes))
            raise RefusedError(403, f"{name[:120]!a} is not served here; served are {known}", "NotServed")
        return found

    def build(self, key: Key, cls: Any, make: Callable[[], Any]) -> ServedComponent:
        """Build a component under ids that are its own from now on."""
        made = None
        try:
            made = make()
            if component_of(made) is None:
                raise NotInitializedError(f"{cls.__name__} was built, but is no component of this session")
            return self._add(key, cls, made)
        finally:
            with self._lock:
                self._reserved.discard(key)

    def reserve(self, key: Key) -> None:
        """Take ids for a component that will be built; raises PlacementError where they are taken."""
        with self._lock:
            if key in self._built or key in self._reserved:
                raise PlacementError(f"instance_id={key[2]!r} is taken on group {key[1]!r}: give another one")
            self._reserved.add(key)

    def _add(self, key: Key, cls: type, value: object) -> ServedComponent:
        component = component_of(value)
        assert component is not None
        with self._lock:
            self._names[key[0], component.group, component.instance] = key[1:]
            made = self._built[key] = ServedComponent(cls, value)
        return made

    def find(self, tenant: str, group: str, instance: str) -> ServedComponent:
        """A tenant's component; raises RefusedError where it has none with these ids."""
        found = self._built.get((tenant, group, instance)) or self.live.get((group, instance))
        if found is None:
            raise unknown("component", f"{group}/{instance}")
        return found

    def named(self, tenant: str, instance: str, cls: type | None = None) -> tuple[Key, ServedComponent]:
        """A tenant's component by its id alone, in any group, with its key; or RefusedError."""
        shared = [((tenant, *place), served) for place, served in self.live.items()]
        for key, served in (*self.built(), *shared):
            if (key[0], key[2]) == (tenant, instance) and cls in (None, served.cls):
                return key, served
        raise unknown("component", instance)

    def built(self) -> Iterator[tuple[Key, ServedComponent]]:
        """The components that clients have built."""
        return iter(tuple(self._built.items()))

    def remove(self, key: Key) -> ServedComponent | None:
        """Forget a component."""
        found = self._built.pop(key, None)
        component = None if found is None else component_of(found.value)
        if component is not None:
            self._names.pop((key[0], component.group, component.instance), None)
        return found

    def encoded(self, tenant: str, value: object, what: str) -> WireMessage:
        """A value as a tenant gets it: components in it are handles by its ids."""
        return encode(value, what=what, named=partial(self._handle, tenant))

    def error(self, tenant: str, error: BaseException) -> bytes:
        """An error as a tenant gets it."""
        return encoded_error(error, partial(self._handle, tenant))

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
            self._add(key, _class_of(value), value)
        return self._names[key]


def _class_of(value: object) -> type:
    """The class of a component, also of its handle."""
    component = component_of(value)
    return next(cls for cls in type(value).__mro__ if component is not None and cls.__name__ == component.name)


def placement(cls: type, kwargs: Mapping[str, Any], group: str) -> dict[str, Any]:
    """The keywords of a constructor, with the group; the id is the session's unless the class takes one."""
    own = kwargs if INSTANCE in declared_keywords(cls) else {key: kwargs[key] for key in kwargs if key != INSTANCE}
    return {**own, GROUP: group}
