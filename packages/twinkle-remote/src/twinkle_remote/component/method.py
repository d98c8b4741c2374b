"""A remote function, and a handle, through which it is called from elsewhere.

What calling a remote function does depends on what its object is, and on where it is called:

| the object | where | what is called |
|---|---|---|
| of no session | anywhere | the plain function |
| a component that the running worker holds, or its handle | in a task | the function, on the worker's object |
| a component of this process, under a launcher | in each of its processes | the function: all make the same call |
| a component of this process alone, or a handle | anywhere else | a `Call`: dispatched, sent, collected |

A handle's call may be lazy; a component's own is not. `isinstance(handle, cls)` holds.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from twinkle_remote.context import call_line, current_worker, running_worker, users_part
from twinkle_remote.errors import RemoteAttributeError, TwinkleError
from twinkle_remote.failures.travel import bare_new
from twinkle_remote.protocol.messages import COMPONENT, Call, Component, HandleBase, component_of, is_handle
from twinkle_remote.protocol.spec import CALL, ITSELF, SPEC, FunctionSpec, options_of, options_under

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_remote.call.send import RemoteIterator
    from twinkle_remote.protocol.spec import Many


_CALLED_BY_PYTHON = frozenset({"__iter__", "__next__", "__len__"})
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def make_remote(function: Callable[..., Any], spec: FunctionSpec) -> Callable[..., Any]:
    """Make a remote function of a method and its options.

    Raises:
        TypeError: It is not a plain method, or the options name an argument that it does not have.
    """
    _check_kind(function)
    signature = inspect.signature(function, follow_wrapped=False)  # a decorator below may take arguments of its own
    _check_names(function, signature, spec)
    names = [one.name for one in list(signature.parameters.values())[1:] if one.kind in _BY_PLACE]
    spec = replace(spec, on_loop=inspect.iscoroutinefunction(function), many=_many(signature))

    def call_of(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any], line: str) -> Call:
        component, name = component_of(self), method.__name__
        assert component is not None
        what = f"{component.name}.{name}"
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            shown = signature.replace(parameters=list(signature.parameters.values())[1:])
            raise TypeError(f"{what}{shown}: {error}") from None
        given = [*names[: len(args)], *(f"args[{i}]" for i in range(len(names), len(args)))]
        return Call("method", component, name, what, spec, line, given, args, kwargs, not is_handle(self))

    @functools.wraps(function)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        component = component_of(self)
        if component is None:
            return function(self, *args, **kwargs)
        worker = running_worker()
        if worker is not None and worker.holds(component):
            return worker.call(component, function, args, kwargs)
        remote = is_handle(self)
        if not remote and current_worker().world_size > 1:  # the other processes make the same call
            return function(self, *args, **kwargs)
        from twinkle_remote.call.send import call_method  # a worker that calls nobody does not load it

        try:
            return call_method(call_of(self, args, kwargs, call_line()), self, lazy=None if remote else False)
        except TwinkleError as error:
            raise error.with_traceback(users_part(error.__traceback__)) from error.__cause__

    setattr(method, SPEC, spec)
    setattr(method, CALL, call_of)
    setattr(method, ITSELF, method)
    if hasattr(function, "__wrapped__"):
        cast("Any", method).__signature__ = signature
    return method


def _check_kind(function: Any) -> None:
    """Check that a function is a method that returns; `__iter__` may yield, since handles iterate by `next`.

    Raises:
        TypeError: It is not.
    """
    if isinstance(function, property):
        raise TypeError("put @property above @remote_function(), not below it")
    if not inspect.isfunction(function):
        raise TypeError(f"remote_function is for methods of an object, got a {type(function).__name__}: use a def")
    name, called = function.__qualname__, function.__name__
    if called in _CALLED_BY_PYTHON and inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} is a coroutine, and Python needs its value at once: make it a plain method")
    if inspect.isasyncgenfunction(function) or (inspect.isgeneratorfunction(function) and called != "__iter__"):
        raise TypeError(
            f"{name} yields, and a remote function returns: return a list, give the class __iter__ and __next__, or "
            "call an async method once for each item"
        )


def _many(signature: inspect.Signature) -> Many:
    """The names of `*args` and of `**kwargs`, and those of single parameters."""
    parameters = signature.parameters.values()
    extra = frozenset(one.name for one in parameters if one.kind is one.VAR_POSITIONAL)
    options = frozenset(one.name for one in parameters if one.kind is one.VAR_KEYWORD)
    return extra, options, frozenset(signature.parameters) - extra - options


def _check_names(function: Any, signature: inspect.Signature, spec: FunctionSpec) -> None:
    """Check that the options name parameters; of one with `**kwargs` any name may be an argument.

    Raises:
        TypeError: They do not, or only a function that a decorator has wrapped has such a parameter.
    """
    known = list(signature.parameters)[1:]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    unknown = [name for name in spec.named_arguments if name not in known]
    if unknown and (hasattr(function, "__wrapped__") or not takes_any):
        raise TypeError(
            f"split=, replicate= and sticky= name arguments of {function.__qualname__}, and {unknown[0]!r} is none of "
            f"{known}"
        )


def name_functions(cls: type) -> None:
    """Let each remote function of a class bear the name of its attribute, under which workers are asked for it.

    Raises:
        TypeError: A decorator above `@remote_function` has copied its mark: a worker would run the decorator again.
    """
    for base in cls.__mro__[:-1]:
        for name, value in tuple(vars(base).items()):
            function: Any = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            mark = getattr(function, ITSELF, None)
            if mark is None or isinstance(value, type):
                continue
            if mark is not function or isinstance(value, staticmethod | classmethod):
                raise TypeError(
                    f"a decorator above @remote_function() hides {cls.__name__}.{name}: put it below "
                    "@remote_function(), where it runs once for each worker"
                )
            if all(vars(one).get(function.__name__) is not value for one in cls.__mro__):
                function.__name__ = name


def _check_override(function: Any, spec: FunctionSpec, base: type) -> None:
    """Check that `*args` hides no argument that the options name: given by its place, it would go whole to each rank.

    Raises:
        TypeError: It does.
    """
    own = inspect.signature(function).parameters
    known = inspect.signature(getattr(base, function.__name__)).parameters
    hidden = [name for name in spec.named_arguments if name in known and name not in own]
    if hidden and any(one.kind is one.VAR_POSITIONAL for one in own.values()):
        raise TypeError(
            f"{function.__qualname__} hides {hidden[0]!r} in *args, which the options of {base.__name__}."
            f"{function.__name__} name: give it a parameter of that name"
        )


_inherited: WeakSet[type] = WeakSet()


def inherit_options(cls: Any) -> None:
    """Make each plain method that overrides a remote function remote, with the same options, once a class.

    Not at decoration, because later decorators such as `dataclass` may replace methods of the class.
    """
    if cls in _inherited:
        return
    for name in dir(cls):
        found = inspect.getattr_static(cls, name, None)
        if inspect.isfunction(found) and options_of(found) is None:
            specs = [spec for base in cls.__mro__ if (spec := options_under(base, name)) is not None]
            if specs:
                _check_override(found, specs[0], next(base for base in cls.__mro__ if options_under(base, name)))
                setattr(cls, name, make_remote(found, specs[0]))
    name_functions(cls)
    _inherited.add(cls)


_CLASS = "__twinkle_class__"
_REMOTE = "__twinkle_remote_names__"
_ITERATOR = "_twinkle_iterator"
_OWN = (COMPONENT, _ITERATOR)
_REFUSED = (
    *("__call__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__next__", "__bool__"),
    *("__enter__", "__exit__", "__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__"),
)
"""Special methods that Python looks up in the class, and not on the handle, and that need the object's state."""


def make_handle(cls: Any, component: Component) -> Any:
    """Make a handle of a component."""
    inherit_options(cls)
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

    def __hash__(self) -> int:
        component = _component(self)
        return hash(component.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_handle, (_class(self), component_of(self))

    def __del__(self) -> None:
        """Do nothing: deleting a handle does not delete the component."""


def _iterator(self: Any) -> RemoteIterator:
    found = self.__dict__.get(_ITERATOR)
    if found is None:
        from twinkle_remote.call.send import RemoteIterator  # few handles are iterated

        spec = options_under(_class(self), "__next__") or FunctionSpec(collect="flatten")
        found = RemoteIterator(_component(self), spec, self)
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
    spec = options_under(_class(self), "__len__") or FunctionSpec(execute="first")
    call = Call("method", component, "__len__", f"{component.name}.__len__", spec, call_line())
    return int(call_method(call, self, lazy=False))
