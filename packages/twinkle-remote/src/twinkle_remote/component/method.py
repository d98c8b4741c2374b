"""A remote function, and what calling it does: one of four things, by what its object is and where it is called.

| the object | where | what is called |
|---|---|---|
| of no session | anywhere | the plain function |
| a component that the running worker holds, or its handle | in a task | the function, on the worker's object |
| a component of this process, under a launcher | in each of its processes | the function: all make the same call |
| a component of this process alone, or a handle | anywhere else | a `Call`: dispatched, sent, collected |

A handle's call may be lazy; a component's own is not.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.context import current_worker, in_event_loop
from twinkle_remote.errors import TwinkleError
from twinkle_remote.failures.frames import call_line, users_part
from twinkle_remote.protocol.call import Call, component_of, is_handle
from twinkle_remote.protocol.spec import ITSELF, NAMES, SPEC, SUBMIT, form_of
from twinkle_remote.running import running_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_remote.protocol.spec import Form, FunctionSpec, Many

_CALLED_BY_PYTHON = frozenset({"__iter__", "__next__", "__len__"})
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def make_remote(function: Callable[..., Any], spec: FunctionSpec) -> Callable[..., Any]:
    """Make a remote function of a method and its options.

    Raises:
        TypeError: It is not a plain method, or the options name an argument that it does not have.
    """
    form = _checked_form(function)
    signature = inspect.signature(function, follow_wrapped=False)  # a decorator below may take arguments of its own
    _check_names(function, signature, spec)
    names = [one.name for one in list(signature.parameters.values())[1:] if one.kind in _BY_PLACE]
    spec = replace(spec, form=form, many=_many(signature))

    def send(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, lazy: bool | None = True) -> Any:
        component, name = component_of(self), method.__name__
        assert component is not None
        check_arguments(component.name, name, signature, self, args, kwargs)
        from twinkle_remote.call.send import call_method  # a worker that calls nobody does not load it

        what, given, own = f"{component.name}.{name}", positional_names(names, len(args)), not is_handle(self)
        call = Call("method", component, name, what, spec, call_line(), given, args, kwargs, own)
        # what an event loop calls it awaits
        return call_method(call, self, lazy=True if spec.on_loop and in_event_loop() else lazy)

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
        try:
            return send(self, args, kwargs, lazy=None if remote else False)
        except TwinkleError as error:
            raise error.with_traceback(users_part(error.__traceback__)) from error.__cause__

    setattr(method, SPEC, spec)
    setattr(method, SUBMIT, send)
    setattr(method, NAMES, names)
    setattr(method, ITSELF, method)
    if hasattr(function, "__wrapped__"):
        cast("Any", method).__signature__ = signature
    return method


def check_arguments(
    owner: str, name: str, signature: inspect.Signature, itself: object, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Bind arguments before anything is sent.

    Raises:
        TypeError: The arguments do not fit; the message shows the signature.
    """
    try:
        signature.bind(itself, *args, **kwargs)
    except TypeError as error:
        shown = signature.replace(parameters=list(signature.parameters.values())[1:])
        raise TypeError(f"{owner}.{name}{shown}: {error}") from None


def positional_names(names: Sequence[str], count: int) -> Sequence[str]:
    """Parameter names of the first `count` positional arguments."""
    return [*names[:count], *(f"args[{i}]" for i in range(len(names), count))]


def bind(bound_method: Any, owner: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[str]:
    """Check the arguments of a bound remote function, and return the names of the positional ones.

    Raises:
        TypeError: The arguments do not fit the method; the message shows the signature.
    """
    signature = inspect.signature(bound_method.__func__)
    check_arguments(owner, bound_method.__name__, signature, bound_method.__self__, args, kwargs)
    return positional_names(getattr(bound_method, NAMES), len(args))


def _checked_form(function: Any) -> Form:
    """The kind of function that a method is; a generator that is `__iter__` is plain, since handles iterate by `next`.

    Raises:
        TypeError: It is not a method, or one that yields.
    """
    if isinstance(function, property):
        raise TypeError("put @property above @remote_function(), not below it")
    if not inspect.isfunction(function):
        raise TypeError(f"remote_function is for methods of an object, got a {type(function).__name__}: use a def")
    name, called, form = function.__qualname__, function.__name__, form_of(function)
    if called in _CALLED_BY_PYTHON and form != "plain":
        raise TypeError(f"{name} is of the kind {form!r}, and Python needs its value at once: make it a plain method")
    if inspect.isasyncgenfunction(function) or (inspect.isgeneratorfunction(function) and called != "__iter__"):
        raise TypeError(
            f"{name} yields, and a remote function returns: return a list, give the class __iter__ and __next__, or "
            "call an async method once for each item"
        )
    return form


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
