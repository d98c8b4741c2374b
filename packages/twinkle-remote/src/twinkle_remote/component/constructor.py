"""The constructor of a remote class: its own arguments, those of placement, and objects built in this process."""

from __future__ import annotations

import functools
import inspect
from contextlib import nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from twinkle_remote.component.method import make_remote, name_functions
from twinkle_remote.context import WorkerContext, working_as
from twinkle_remote.protocol.call import component_of
from twinkle_remote.protocol.spec import execute_of, options_under
from twinkle_remote.sessions.current import active
from twinkle_remote.sessions.seeding import constructor_seeded, next_component_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_mesh import DeviceMesh

GROUP, MESH, INSTANCE = "remote_group", "device_mesh", "instance_id"
_KEYWORDS = frozenset({GROUP, MESH, INSTANCE})
_building: ContextVar[type | None] = ContextVar("twinkle_building", default=None)
_prepared: WeakSet[type] = WeakSet()


def prepare(cls: Any) -> None:
    """Prepare a remote class, or a subclass of one, before its first object; once.

    Not at decoration, because later decorators such as `dataclass` may replace methods of the class.
    """
    if cls in _prepared:
        return
    _wrap_init(cls)
    for name in dir(cls):
        _inherit_options(cls, name)
    name_functions(cls)
    _prepared.add(cls)


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
    if MESH in declared_keywords(cls):
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
    elif (args or kwargs) and not _own_new(type(itself)):
        raise TypeError(f"{type(itself).__name__}() takes no arguments")


def _inherit_options(cls: Any, name: str) -> None:
    """Make a plain method remote if it overrides a remote function, with the same options."""
    found = inspect.getattr_static(cls, name, None)
    if not inspect.isfunction(found) or options_under(cls, name) is not None:
        return
    for base in cls.__mro__:
        spec = options_under(base, name)
        if spec is not None:
            setattr(cls, name, make_remote(found, spec))
            return


def is_building(cls: type) -> bool:
    """Whether the running code is making an object of the class in this process."""
    return _building.get() is cls


def build(cls: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make an object in this process without `__init__`.

    Args:
        cls: Its class.
        original: The class's own `__new__`.
        args: Positional arguments of the constructor.
        kwargs: Keyword arguments, including those of placement.
    """
    if original is object.__new__:
        return original(cls)
    token = _building.set(cls)
    try:
        return original(cls, *args, **own_keywords(cls, kwargs))
    finally:
        _building.reset(token)


def own_keywords(cls: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords, without the placement keywords that the class does not declare."""
    if _KEYWORDS.isdisjoint(kwargs):
        return kwargs
    declared = declared_keywords(cls)
    return {key: value for key, value in kwargs.items() if key not in _KEYWORDS or key in declared}


def with_mesh(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh | None) -> dict[str, Any]:
    """The keywords with the component's actual mesh, for a class that declares `device_mesh`."""
    signature = constructor_signature(cls)
    by_place = [] if signature is None else list(signature.parameters)[: len(args)]
    return kwargs if mesh is None or MESH in by_place else {**kwargs, MESH: mesh}


def declared_keywords(cls: Any) -> frozenset[str]:
    """The placement keywords that the constructor declares, or that a base declares and receives as `**kwargs`."""
    names: set[str] = set()
    for signature in _signatures(cls):
        names.update(signature.parameters)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
            break
    return _KEYWORDS & names


def constructor_signature(cls: Any) -> inspect.Signature | None:
    """The signature of calling the class; None for a C class without a signature."""
    found = next(_signatures(cls), None)
    if found is not None:
        return found
    written_in_c = any(_own_constructors(base) for base in _own_bases(cls))
    return None if written_in_c else inspect.Signature()


def _own_constructors(cls: type) -> list[Any]:
    """The `__init__` and `__new__` that a class defines itself, without the wrapped ones of `object`."""
    found = [vars(cls).get(name) for name in ("__init__", "__new__")]
    functions = [unintercepted(getattr(one, "__func__", one)) for one in found if one is not None]
    return [one for one in map(inspect.unwrap, functions) if one not in (object.__init__, object.__new__)]


class ConstructorSignature:
    """The descriptor that gives `inspect.signature` the constructor's own signature, also for subclasses."""

    def __get__(self, instance: object, cls: Any) -> inspect.Signature:
        found = None if instance is not None else constructor_signature(cls)
        if found is None:
            raise AttributeError("__signature__")
        return found


def _signatures(cls: Any) -> Iterator[inspect.Signature]:
    """Constructor signatures of a class and its bases, nearest first, without the first parameter."""
    for name in ("__init__", "__new__"):
        for base in _own_bases(cls):
            found = vars(base).get(name)
            function = unintercepted(getattr(found, "__func__", found))
            function = inspect.unwrap(function) if callable(function) else None
            if inspect.isfunction(function):
                yield _without_first(inspect.signature(function))


def _without_first(signature: inspect.Signature) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    named = bool(parameters) and parameters[0].kind is not parameters[0].VAR_POSITIONAL
    return signature.replace(parameters=parameters[1:] if named else parameters)


def unintercepted(function: Any) -> Any:
    """The function that a class itself defines, below what `remote_class` puts around it."""
    return getattr(function, "__twinkle_original__", function)


def _own_bases(cls: type) -> Iterator[type]:
    return (base for base in cls.__mro__ if base is not object)


def _own_new(cls: Any) -> bool:
    return unintercepted(cls.__new__) is not object.__new__
