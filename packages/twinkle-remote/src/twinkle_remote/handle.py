"""What a caller holds for a component on another group: `isinstance(handle, cls)`, and only remote functions work."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.component import COMPONENT, component_of
from twinkle_remote.errors import TwinkleError
from twinkle_remote.iterate import RemoteIterator
from twinkle_remote.spec import FunctionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_remote.component import Component

SPEC = "__twinkle_spec__"
SUBMIT = "__twinkle_submit__"
NAMES = "__twinkle_names__"
_KEPT = frozenset({COMPONENT, "_twinkle_iterator"})


class RemoteAttributeError(TwinkleError, AttributeError):
    """Something that is not a remote function was read from a handle."""


def make_handle(cls: Any, component: Component) -> Any:
    """A handle of a component."""
    handle = object.__new__(handle_type(cls))
    object.__setattr__(handle, COMPONENT, component)
    return handle


@cache
def handle_type(cls: Any) -> Any:
    """The class of the handles of a remote class: a subclass of it that holds no state."""
    body: dict[str, Any] = {
        "__twinkle_handle__": True,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__new__": object.__new__,
        "__init__": _nothing,
        "__reduce__": _reduce,
        "__reduce_ex__": _reduce,
        "__repr__": _repr,
        "__getattribute__": _getattribute,
        "__setattr__": _setattr,
        "__hash__": object.__hash__,
        "__eq__": object.__eq__,
        "__del__": _nothing,
    }
    for name, stand_in in (("__iter__", _iter), ("__next__", _next), ("__len__", _len)):
        if callable(getattr(cls, name, None)) and not hasattr(inspect.getattr_static(cls, name), SPEC):
            body[name] = stand_in
    if callable(getattr(cls, "__iter__", None)):
        body["__iter__"], body["__next__"] = _iter, _next
    if hasattr(cls, "__enter__"):
        body["__enter__"], body["__exit__"] = _enter, _exit
    return type(cls)(cls.__name__, (cls,), body)


def _nothing(self: object, *args: object, **kwargs: object) -> None:
    return None


def _restore(cls: type, component: Component) -> object:
    return make_handle(cls, component)


def _reduce(self: object, protocol: int = 0) -> tuple[Any, ...]:
    return _restore, (type(self).__mro__[1], component_of(self))


def _repr(self: object) -> str:
    component = component_of(self)
    assert component is not None
    return f"<{component.name} on {component.group}[{len(component.ranks)}], instance {component.instance}>"


def _getattribute(self: object, name: str) -> Any:
    if name in _KEPT or (name.startswith("__") and name.endswith("__")):
        return object.__getattribute__(self, name)
    found = inspect.getattr_static(type(self), name, None)
    if isinstance(found, property) and hasattr(found.fget, SPEC):
        return object.__getattribute__(self, name)
    function = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    if hasattr(function, SPEC) or isinstance(found, staticmethod | classmethod):
        return object.__getattribute__(self, name)
    component = component_of(self)
    assert component is not None
    subject = "the method"
    if not inspect.isfunction(found):
        subject = "the property's getter" if isinstance(found, property) else "a method that returns it"
    raise RemoteAttributeError(
        f"{component.name}.{name} lives on the workers of group {component.group!r}, and only remote functions are "
        f"called from elsewhere: decorate {subject} with @remote_function()"
    )


def _setattr(self: object, name: str, value: object) -> None:
    if name in _KEPT:
        object.__setattr__(self, name, value)
        return
    component = component_of(self)
    assert component is not None
    raise RemoteAttributeError(
        f"{component.name}.{name} lives on the workers of group {component.group!r}: set it in a method decorated with "
        "@remote_function()"
    )


def _iterator(self: Any) -> RemoteIterator:
    found = self.__dict__.get("_twinkle_iterator")
    if found is None:
        cls = type(self).__mro__[1]
        component = component_of(self)
        assert component is not None
        found = RemoteIterator(component, _spec(cls, "__next__", FunctionSpec(collect="flatten")), self)
        object.__setattr__(self, "_twinkle_iterator", found)
    return cast("RemoteIterator", found)


def _spec(cls: type, name: str, default: FunctionSpec) -> FunctionSpec:
    found = getattr(inspect.getattr_static(cls, name, None), SPEC, None)
    return default if found is None else cast("FunctionSpec", found)


def _iter(self: Any) -> Iterator[Any]:
    iterator = _iterator(self)
    iterator.open()
    return iterator


def _next(self: Any) -> Any:
    return next(_iterator(self))


def _call(self: Any, name: str, args: tuple[Any, ...], default: FunctionSpec) -> Any:
    from twinkle_remote.call import call_method

    component = component_of(self)
    assert component is not None
    spec = _spec(type(self).__mro__[1], name, default)
    names = [f"args[{i}]" for i in range(len(args))]
    return call_method(component, name, spec, names, args, {}, itself=self, lazy=False)


def _len(self: Any) -> int:
    return int(_call(self, "__len__", (), FunctionSpec(execute="first")))


def _enter(self: Any) -> Any:
    return _call(self, "__enter__", (), FunctionSpec(dispatch="all", collect="first"))


def _exit(self: Any, *error: object) -> bool:
    kind, value, _ = error
    told = (kind, value, None)  # a traceback does not travel
    return bool(_call(self, "__exit__", told, FunctionSpec(dispatch="all", collect="first")))
