"""Handles of components on other groups: `isinstance(handle, cls)` holds, and only remote functions work."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.component.constructor import prepare
from twinkle_remote.errors import RemoteAttributeError
from twinkle_remote.failures.frames import call_line
from twinkle_remote.failures.travel import bare_new
from twinkle_remote.protocol.call import COMPONENT, Call, Component, HandleBase, component_of
from twinkle_remote.protocol.spec import FunctionSpec, options_under

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_remote.call.iterate import RemoteIterator

_CLASS = "__twinkle_class__"
_REMOTE = "__twinkle_remote_names__"
_ITERATOR = "_twinkle_iterator"
_OWN = (COMPONENT, _ITERATOR)
SPECIAL = {
    "__len__": FunctionSpec(execute="first"),
}
"""The special methods that a handle sends to its workers, and their options if the class gives none."""
_REFUSED = (
    *("__call__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__next__", "__bool__"),
    *("__enter__", "__exit__", "__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__"),
)
"""Special methods that Python looks up in the class, and not on the handle, and that need the object's state."""


def make_handle(cls: Any, component: Component) -> Any:
    """Make a handle of a component."""
    prepare(cls)
    kind = handle_type(cls)
    handle = bare_new(kind)(kind)
    object.__setattr__(handle, COMPONENT, component)
    return handle


@cache
def handle_type(cls: Any) -> Any:
    """The class of the handles of a remote class: a subclass without state."""
    remote = frozenset(name for name in dir(cls) if options_under(cls, name) is not None)
    body: dict[str, Any] = {name: _refusing(name) for name in _REFUSED if hasattr(cls, name) and name not in remote}
    if callable(getattr(cls, "__iter__", None)):
        body["__iter__"], body["__next__"] = _iter, _next
    if callable(getattr(cls, "__len__", None)):
        body["__len__"] = _len
    identity = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(cls)(cls.__name__, (Handle, cls), {**body, **identity, _CLASS: cls, _REMOTE: remote})


def _refusing(name: str) -> Any:
    def refuse(self: Any, *args: object, **kwargs: object) -> Any:
        raise _refusal(self, name)

    return refuse


def _refusal(self: Any, name: str) -> RemoteAttributeError:
    component, cls = _component(self), _class(self)
    found = inspect.getattr_static(cls, name, None)
    subject = "a method that returns it"
    if inspect.isroutine(found):
        subject = "the method"
    elif isinstance(found, property):
        subject = "the property's getter"
    known = ", ".join(sorted(getattr(type(self), _REMOTE))) or "none"
    return RemoteAttributeError(
        f"{component.name}.{name} lives on the workers of group {component.group!r}, and only remote functions are "
        f"called from elsewhere: decorate {subject} with @remote_function()"
        + ("" if found else f"; {cls.__name__} has {known}")
    )


def _class(self: Any) -> type:
    return cast("type", getattr(type(self), _CLASS))


def _component(self: Any) -> Component:
    return cast("Component", component_of(self))


class Handle(HandleBase):
    """The behaviour of handles: they show their identity, and send remote functions to the workers."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Do nothing: the base's `__init_subclass__` must not run for a handle class."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Do nothing: the component is constructed on its workers."""

    def __getattribute__(self, name: str) -> Any:
        kept = name in getattr(type(self), _REMOTE) or name in _OWN
        if kept or (name.startswith("__") and name.endswith("__")):
            return object.__getattribute__(self, name)
        cls = _class(self)
        if isinstance(inspect.getattr_static(cls, name, None), staticmethod | classmethod):
            return getattr(cls, name)
        raise _refusal(self, name)

    def __getattr__(self, name: str) -> Any:
        raise _refusal(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        component = _component(self)
        raise RemoteAttributeError(
            f"{component.name}.{name} lives on the workers of group {component.group!r}: set it in a method decorated "
            "with @remote_function()"
        )

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __repr__(self) -> str:
        component = _component(self)
        return f"<{component.name} on {component.group}[{len(component.ranks)}], instance {component.instance}>"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HandleBase) and component_of(self) == component_of(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        component = _component(self)
        return hash((component.group, component.instance))

    def __reduce__(self) -> tuple[Any, ...]:
        return make_handle, (_class(self), component_of(self))

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return self.__reduce__()

    def __del__(self) -> None:
        """Do nothing: deleting a handle does not delete the component."""


def step_options(cls: Any) -> FunctionSpec:
    """The options of each step of an iteration over a handle of the class."""
    return options_under(cls, "__next__") or FunctionSpec(collect="flatten")


def _iterator(self: Any) -> RemoteIterator:
    found = self.__dict__.get(_ITERATOR)
    if found is None:
        from twinkle_remote.call.iterate import RemoteIterator  # few handles are iterated

        found = RemoteIterator(_component(self), step_options(_class(self)), self)
        object.__setattr__(self, _ITERATOR, found)
    return cast("RemoteIterator", found)


def _iter(self: Any) -> Iterator[Any]:
    iterator = _iterator(self)
    iterator.open()
    return iterator


def _next(self: Any) -> Any:
    return next(_iterator(self))


def _len(self: Any) -> int:
    from twinkle_remote.call.send import call_method  # few handles are counted

    component = _component(self)
    spec = options_under(_class(self), "__len__") or SPECIAL["__len__"]
    call = Call("method", component, "__len__", f"{component.name}.__len__", spec, call_line())
    return int(call_method(call, self, lazy=False))
