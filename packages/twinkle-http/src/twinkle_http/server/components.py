"""The served classes, and the components of all tenants: what a handle's ids stand for, and how one is called."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from twinkle_http.gate import RefusedError, unknown
from twinkle_http.types import constructor_parameters, register_annotated
from twinkle_http.wire import encode, encoded_error
from twinkle_remote import is_handle, submit
from twinkle_remote.backends.support import Lazy, make_handle
from twinkle_remote.errors import NotInitializedError, PlacementError
from twinkle_remote.protocol import component_of, is_component_type, options_of
from twinkle_remote.rows import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from twinkle_http.wire import WireMessage

Key: TypeAlias = tuple[str, str, str]
"""Tenant, group and id of a component, as its client chose them."""


def _open(handle: Any) -> None:
    iter(handle)


_STEPS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "__iter__": ("__iter__", _open),
    "__next__": ("__iter__", next),
    "__len__": ("__len__", len),
}
"""The special methods that a handle has: what the class must have for it, and what is called with the handle."""


def remote_function(cls: type, name: str) -> Any:
    """The remote function of a class with a name, or the remote getter of a property; None where there is none."""
    found = None if name.startswith("_") else inspect.getattr_static(cls, name, None)
    function = found.fget if isinstance(found, property) else found
    return None if options_of(function) is None else function


def remote_names(cls: type) -> Sequence[str]:
    """The names of the remote functions of a class, sorted; those of special methods last."""
    special = [name for name, (needed, _) in _STEPS.items() if callable(getattr(cls, needed, None))]
    return [*(name for name in dir(cls) if remote_function(cls, name) is not None), *special]


@dataclass(eq=False, slots=True)
class ServedComponent:
    """A component of a tenant, built in the session of this process.

    Attributes:
        value: What its class gave when it was called: an object of this process must be kept.
        handle: A handle of it.
        stepping: Held while an iteration of it makes a step.
    """

    cls: type
    value: Any
    handle: Any = field(init=False)
    stepping: Any = field(default_factory=Lock)

    def __post_init__(self) -> None:
        component = component_of(self.value)
        if component is None:
            raise NotInitializedError(f"{self.cls.__name__} was built, but is no component of this session")
        self.handle = make_handle(self.cls, component)

    def begin(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Lazy[Any] | Callable[[], Any]:
        """Begin a call of a remote function: its lazy result, or of a special method what waits for its value.

        Raises:
            RefusedError: The class has no such remote function.
            TypeError: The arguments do not fit it.
        """
        function = remote_function(self.cls, name)
        if function is not None:
            return submit(MethodType(function, self.handle), *args, **kwargs)
        if name not in remote_names(self.cls):
            raise RefusedError(403, f"{name[:80]!a} is no remote function of {self.cls.__name__}", "NotServed")

        def step() -> Any:
            with self.stepping:
                return _STEPS[name][1](self.handle)

        return step


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
        self._built: dict[Key, ServedComponent | None] = {}  # None while it is built
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

    def reserve(self, key: Key) -> None:
        """Take ids for a component that will be built; raises PlacementError where they are taken."""
        with self._lock:
            if key in self._built:
                raise PlacementError(f"instance_id={key[2]!r} is taken on group {key[1]!r}: give another one")
            self._built[key] = None

    def build(self, key: Key, cls: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Build a component under ids that were reserved; the session has an id of its own for it."""
        own = "instance_id" in constructor_parameters(cls)
        given = {name: value for name, value in kwargs.items() if own or name != "instance_id"}
        try:
            self._add(key, cls, cls(*args, **{**given, "remote_group": key[1]}))
        except BaseException:
            self.remove(key)
            raise

    def _add(self, key: Key, cls: type, value: object) -> None:
        made, component = ServedComponent(cls, value), component_of(value)
        assert component is not None
        with self._lock:
            self._names[key[0], component.group, component.instance] = key[1:]
            self._built[key] = made

    def find(self, tenant: str, group: str, instance: str) -> ServedComponent:
        """A tenant's component; raises RefusedError where it has none with these ids."""
        found = self._built.get((tenant, group, instance)) or self.live.get((group, instance))
        if found is None:
            raise unknown("component", f"{group}/{instance}")
        return found

    def named(self, tenant: str, instance: str, cls: type | None = None) -> tuple[Key, ServedComponent]:
        """A tenant's component by its id alone, in any group, with its key; or RefusedError."""
        shared = [((tenant, *place), served) for place, served in self.live.items()]
        for key, served in (*tuple(self._built.items()), *shared):
            if served is not None and (key[0], key[2]) == (tenant, instance) and cls in (None, served.cls):
                return key, served
        raise unknown("component", instance)

    def remove(self, key: Key) -> object:
        """Forget a component that a client has built; returns it, or None."""
        found = self._built.pop(key, None)
        component = None if found is None else component_of(found.handle)
        if found is None or component is None:
            return None
        self._names.pop((key[0], component.group, component.instance), None)
        return found.value

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


def _class_of(value: Any) -> type:
    """The class of a component; a handle pickles as the class and the component."""
    return cast("type", value.__reduce__()[1][0] if is_handle(value) else type(value))
