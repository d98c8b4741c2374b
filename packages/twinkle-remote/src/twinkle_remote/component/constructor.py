"""The constructor of a remote class: its signature, the keywords of placement, and `__init__` wrapped once a class.

The wrapped `__init__` takes the keywords of placement off, and seeds the generators before an object is built.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from twinkle_remote.component.method import make_remote, name_functions
from twinkle_remote.context import WorkerContext, working_as
from twinkle_remote.protocol.call import component_of
from twinkle_remote.protocol.spec import execute_of, options_of, options_under
from twinkle_remote.sessions.current import active
from twinkle_remote.sessions.seeding import constructor_seeded, next_component_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_mesh import DeviceMesh

GROUP, MESH, INSTANCE = "remote_group", "device_mesh", "instance_id"
_KEYWORDS = frozenset({GROUP, MESH, INSTANCE})
ORIGINAL = "__twinkle_original__"
_prepared: WeakSet[type] = WeakSet()


def prepare(cls: Any) -> None:
    """Prepare a remote class, or a subclass of one, before its first object or handle; once.

    Not at decoration, because later decorators such as `dataclass` may replace methods of the class.
    """
    if cls in _prepared:
        return
    _wrap_init(cls)
    _inherit_options(cls)
    name_functions(cls)
    _prepared.add(cls)


def _inherit_options(cls: Any) -> None:
    """Make each plain method that overrides a remote function remote, with the same options."""
    for name in dir(cls):
        found = inspect.getattr_static(cls, name, None)
        if inspect.isfunction(found) and options_of(found) is None:
            specs = [spec for base in cls.__mro__ if (spec := options_under(base, name)) is not None]
            if specs:
                setattr(cls, name, make_remote(found, specs[0]))


def _wrap_init(cls: Any) -> None:
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if type(self).__init__ is init:  # not when called through super().__init__
            _initialize(original, self, args, kwargs)
        else:
            _call_init(original, self, args, kwargs)

    cls.__init__ = init


def _initialize(original: Callable[..., None], itself: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call a constructor with its own keywords only; a local component is constructed as on a worker."""
    cls = type(itself)
    component = component_of(itself)
    runtime = active()
    if component is None or runtime is None or not runtime.backend.in_process:
        _call_init(original, itself, args, own_keywords(cls, kwargs))
        return
    backend = runtime.backend
    kwargs = with_mesh(cls, args, kwargs, component.mesh)
    size = backend.group(component.group).size
    alone = execute_of(cls) == "first"
    place = WorkerContext(component.group, backend.rank, size, component.mesh, alone)
    seed = None if component.group == backend.own_group else next_component_seed()
    with working_as(place), nullcontext() if seed is None else constructor_seeded(seed):
        _call_init(original, itself, args, own_keywords(cls, kwargs))


def _call_init(original: Callable[..., None], itself: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if original is not object.__init__:
        original(itself, *args, **kwargs)
    elif (args or kwargs) and unintercepted(type(itself).__new__) is object.__new__:
        raise TypeError(f"{type(itself).__name__}() takes no arguments")


def own_keywords(cls: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords, without the placement keywords that the class does not declare."""
    if _KEYWORDS.isdisjoint(kwargs):
        return kwargs
    declared = declared_keywords(cls)
    return {key: value for key, value in kwargs.items() if key not in _KEYWORDS or key in declared}


def with_mesh(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh | None) -> dict[str, Any]:
    """The keywords with the component's actual mesh, for a class that declares `device_mesh`."""
    if mesh is None or MESH not in declared_keywords(cls):
        return kwargs
    signature = constructor_signature(cls)
    by_place = [] if signature is None else list(signature.parameters)[: len(args)]
    return kwargs if MESH in by_place else {**kwargs, MESH: mesh}


def declared_keywords(cls: Any) -> frozenset[str]:
    """The placement keywords that the constructor declares, or that a base declares and receives as `**kwargs`."""
    names: set[str] = set()
    for function in _constructors(cls):
        parameters = inspect.signature(function).parameters
        names.update(parameters)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return _KEYWORDS & names


def constructor_signature(cls: Any) -> inspect.Signature | None:
    """The signature of calling the class; None for a class whose constructor is written in C."""
    function = next(_constructors(cls), None)
    if function is None:
        plain = inspect.unwrap(cls.__init__) is object.__init__ and unintercepted(cls.__new__) is object.__new__
        return inspect.Signature() if plain else None
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    named = bool(parameters) and parameters[0].kind is not parameters[0].VAR_POSITIONAL
    return signature.replace(parameters=parameters[1:] if named else parameters)


class ConstructorSignature:
    """The descriptor that gives `inspect.signature` the constructor's own signature, also for subclasses."""

    def __get__(self, instance: object, cls: Any) -> inspect.Signature:
        found = None if instance is not None else constructor_signature(cls)
        if found is None:
            raise AttributeError("__signature__")
        return found


def _constructors(cls: Any) -> Iterator[Any]:
    """The functions that take the arguments of a class: each `__init__`, nearest first, then each `__new__`."""
    for name in ("__init__", "__new__"):
        for base in cls.__mro__[:-1]:
            found = vars(base).get(name)
            function = inspect.unwrap(unintercepted(getattr(found, "__func__", found)))
            if inspect.isfunction(function):
                yield function


def unintercepted(function: Any) -> Any:
    """The function that a class itself defines, below what `remote_class` puts around it."""
    return getattr(function, ORIGINAL, function)
