"""The two decorators: a class whose objects can live on a group of workers, and a method that is called there."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from twinkle_remote.call import call_method
from twinkle_remote.component import component_of, is_handle
from twinkle_remote.context import current_worker
from twinkle_remote.handle import NAMES, SPEC, SUBMIT
from twinkle_remote.placement import construct, strip_placement, with_mesh
from twinkle_remote.spec import (
    EXECUTES,
    Collect,
    CollectFunction,
    Dispatch,
    Execute,
    FunctionSpec,
    Uneven,
    Weight,
    choose,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound="Callable[..., Any]")


class _Same(Protocol):
    def __call__(self, function: F, /) -> F: ...


class _OrList(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | list[R]]: ...


class _Class(Protocol):
    def __call__(self, cls: C, /) -> C: ...


def remote_class(execute: Execute = "all") -> _Class:
    """Let objects of a class live on a group of workers.

    Three keywords are added to the constructor, and taken off unless it declares them: `remote_group` (name of a
    group), `device_mesh` (the component's mesh, as large as the group) and `instance_id`. Without a `remote_group`, in
    "local" mode, or on a worker of that very group, the object is built in the process; otherwise on the group's
    workers, and the caller holds a handle of the same type whose remote functions run there.

    Args:
        execute: "all" builds it on every worker, "first" on the first one only (a dataset, a tokenizer).

    Raises:
        ValueError: `execute` is neither.
    """
    choose("execute", execute, EXECUTES)

    def decorate(cls: C) -> C:
        _intercept_new(cls, execute)
        _strip_init(cls)
        _follow_subclasses(cls)
        return cls

    return decorate


def _intercept_new(cls: Any, execute: Execute) -> None:
    original = cls.__new__

    def new(kind: Any, *args: Any, **kwargs: Any) -> Any:
        def build() -> Any:
            if original is object.__new__:
                return original(kind)
            return original(kind, *args, **strip_placement(kind, kwargs))

        if getattr(kind, "__twinkle_handle__", False):
            return build()
        return construct(kind, execute, args, kwargs, build)

    cls.__new__ = new


def _strip_init(cls: Any) -> None:
    original = cls.__init__
    if original is object.__init__:

        @functools.wraps(original)
        def bare(self: object, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **strip_placement(type(self), kwargs))

        cls.__init__ = bare
        return

    declared = _declares(original)

    @functools.wraps(original)
    def init(self: object, *args: Any, **kwargs: Any) -> None:
        component = component_of(self)
        if component is not None:
            kwargs = with_mesh(kwargs, component.mesh, declared)
        original(self, *args, **strip_placement(type(self), kwargs, declared))

    cls.__init__ = init


def _declares(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _follow_subclasses(cls: Any) -> None:
    original = cls.__init_subclass__

    def follow(subclass: Any, **kwargs: Any) -> None:
        original.__func__(subclass, **kwargs) if inspect.ismethod(original) else original(**kwargs)
        if "__init__" in vars(subclass) and not getattr(subclass, "__twinkle_handle__", False):
            _strip_init(subclass)

    cls.__init_subclass__ = classmethod(cast("Any", follow))


@overload
def remote_function(
    dispatch: Dispatch = "slice",
    execute: Execute = "all",
    *,
    collect: Literal["flatten", "mean", "sum", "first", "last_pp"] | CollectFunction,
    sync: bool = False,
    lazy_collect: bool | None = None,
    timeout: float | None = None,
    split: str | Sequence[str] | None = None,
    replicate: str | Sequence[str] | None = None,
    uneven: Uneven | None = None,
    weight: Weight | None = None,
) -> _Same: ...
@overload
def remote_function(
    dispatch: Dispatch,
    execute: Execute,
    collect: Literal["flatten", "mean", "sum", "first", "last_pp"] | CollectFunction,
    sync: bool = False,
    lazy_collect: bool | None = None,
    timeout: float | None = None,
    split: str | Sequence[str] | None = None,
    replicate: str | Sequence[str] | None = None,
    uneven: Uneven | None = None,
    weight: Weight | None = None,
) -> _Same: ...
@overload
def remote_function(
    dispatch: Dispatch = "slice",
    execute: Execute = "all",
    collect: Literal["none"] = "none",
    sync: bool = False,
    lazy_collect: bool | None = None,
    timeout: float | None = None,
    split: str | Sequence[str] | None = None,
    replicate: str | Sequence[str] | None = None,
    uneven: Uneven | None = None,
    weight: Weight | None = None,
) -> _OrList: ...
def remote_function(
    dispatch: Dispatch = "slice",
    execute: Execute = "all",
    collect: Collect = "none",
    sync: bool = False,
    lazy_collect: bool | None = None,
    timeout: float | None = None,
    split: str | Sequence[str] | None = None,
    replicate: str | Sequence[str] | None = None,
    uneven: Uneven | None = None,
    weight: Weight | None = None,
) -> Any:
    """Let a method of a remote class be called from elsewhere; called inside its worker it just runs.

    Args:
        dispatch: "slice" splits list arguments evenly over the workers; "all" sends everything whole; "slice_dp"
            splits lists, tuples, arrays and tensors, also inside dicts and dataclasses, by the mesh's data ranks; or a
            callable `(length, i, args, kwargs, device_mesh) -> (args_i, kwargs_i)` for worker i of length.
        execute: "all" workers that hold the component, or the "first".
        collect: "none" gives the list of the workers' results (the bare result of one worker); "flatten" joins rows,
            "mean" and "sum" reduce, each counting a data rank once; "first" is the first worker's; "last_pp" the list
            of the last pipeline stage's, one per data rank; or a callable `(results, device_mesh)`.
        sync: Wait for every worker before returning.
        lazy_collect: Leave results on the workers until they are used; None follows `initialize`.
        timeout: Seconds from the call to its deadline; None for none.
        split: Names of the arguments to split; then nothing else is.
        replicate: Names of the arguments that go whole.
        uneven: Rows that the data ranks do not divide: None splits as evenly as it goes (ranks without rows get an
            empty slice of the same type), "strict" refuses, "pad" repeats rows and drops their results, "drop" leaves
            the rest out.
        weight: For "mean" and "sum": "rows" weighs by the rows that each data rank was given, a callable by its
            value for each result.

    Raises:
        ValueError: An option is not valid; the message lists what is.
        TypeError: `split` or `replicate` names an argument that the method does not have.
    """
    spec = FunctionSpec(
        dispatch,
        execute,
        collect,
        sync,
        lazy_collect,
        timeout,
        None if split is None else _names(split),
        _names(replicate or ()),
        uneven,
        weight,
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        _check_names(function, signature, (*(spec.split or ()), *spec.replicate))
        positional = [
            p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        names = positional[1:]

        def send(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, lazy: bool | None = True) -> Any:
            component = component_of(self)
            assert component is not None
            try:
                signature.bind(self, *args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{component.name}.{function.__name__}{signature}: {error}") from None
            bound = names[: len(args)] + [f"args[{i}]" for i in range(len(names), len(args))]
            return call_method(component, function.__name__, spec, bound, args, kwargs, itself=self, lazy=lazy)

        @functools.wraps(function)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_handle(self):
                return send(self, args, kwargs, lazy=None)
            if component_of(self) is None or current_worker().rank is not None:
                return function(self, *args, **kwargs)
            return send(self, args, kwargs, lazy=False)

        setattr(method, SPEC, spec)
        setattr(method, SUBMIT, send)
        setattr(method, NAMES, names)
        return method

    return decorate


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _check_names(function: Callable[..., Any], signature: inspect.Signature, named: Sequence[str]) -> None:
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters][1:]
    for name in named:
        if name not in known:
            where = cast("Any", function).__qualname__
            raise TypeError(f"split= and replicate= name arguments of {where}, and {name!r} is none of {known}")
