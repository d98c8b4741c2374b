"""The constructor of a remote class: its own arguments, those of placement, and objects built in this process."""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from twinkle_remote.component.decorated import check_decorators
from twinkle_remote.component.method import make_remote
from twinkle_remote.context import WorkerContext, run_apart, working_as
from twinkle_remote.protocol.backend import InProcessBackend
from twinkle_remote.protocol.component import component_of, remember_reads
from twinkle_remote.protocol.marks import execute_of, options_under
from twinkle_remote.sessions.current import backend_here
from twinkle_remote.sessions.forked import renew_threads_of_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.column_rule import ColumnRule
    from twinkle_remote.protocol.component import ColumnsRead

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
    check_decorators(cls)
    _wrap_init(cls)
    for name in dir(cls):
        _inherit_options(cls, name)
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
    renew_threads_of_torch()
    cls = type(itself)
    reads = reads_by_constructor(cls, args, kwargs)
    if reads:
        remember_reads(itself, reads)
    component = component_of(itself)
    backend = backend_here()
    if component is None or not isinstance(backend, InProcessBackend):
        _call_init(original, itself, args, own_keywords(cls, kwargs))
        return
    if MESH in declared_keywords(cls):
        kwargs = with_mesh(cls, args, kwargs, component.mesh)
    size = backend.group(component.group).size
    alone = execute_of(cls) == "first"
    place = WorkerContext(component.group, backend.rank, size, component.mesh, alone)
    run_apart(_call_init_as, place, original, itself, args, own_keywords(cls, kwargs))


def _call_init_as(
    place: WorkerContext, original: Callable[..., None], itself: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with working_as(place):
        _call_init(original, itself, args, kwargs)


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


def flags_off(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[str]:
    """The flags of a constructor that are False, of those that remote functions of the class name in `balance=`.

    Raises:
        TypeError: A function names what is no parameter of the constructor.
    """
    named = _balance_flags(cls)
    signature = constructor_signature(cls) if named else None
    if signature is None:
        return frozenset()
    if strange := named - signature.parameters.keys():
        raise TypeError(
            f"{cls.__name__}: balance={min(strange)!r} of a remote function names no parameter of the constructor, "
            f"{signature}"
        )
    given = _arguments(cls, signature, args, kwargs)
    return frozenset() if given is None else frozenset(name for name in named if given.get(name) is False)


def reads_by_constructor(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ColumnsRead:
    """The columns that functions read whose `reads=` asks for the constructor's arguments, by their names.

    Raises:
        ValueError: A rule returns something else than names.
    """
    rules = _rules_of_constructor(cls)
    signature = constructor_signature(cls) if rules else None
    given = None if signature is None else _arguments(cls, signature, args, kwargs)
    if given is None:
        return ()
    return tuple([(name, rule.columns_at_construction(given)) for name, rule in rules])


def _arguments(
    cls: Any, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Mapping[str, Any] | None:
    """The arguments of a constructor by name, with their defaults; None where they do not fit (reported later)."""
    try:
        bound = signature.bind(*args, **own_keywords(cls, kwargs))
    except TypeError:
        return None
    bound.apply_defaults()
    return bound.arguments


@functools.cache
def _rules_of_constructor(cls: Any) -> Sequence[tuple[str, ColumnRule]]:
    found = [(name, options_under(cls, name)) for name in dir(cls)]
    return [(name, spec.reads) for name, spec in found if spec and spec.reads and spec.reads.of_constructor]


@functools.cache
def _balance_flags(cls: Any) -> frozenset[str]:
    found = [options_under(cls, name) for name in dir(cls)]
    return frozenset(spec.balance for spec in found if spec is not None and isinstance(spec.balance, str))


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
