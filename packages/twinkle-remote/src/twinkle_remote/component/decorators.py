"""The two decorators: a class whose objects can live on a group of workers, and a method that is called there."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from twinkle_remote.component.constructor import ConstructorSignature
from twinkle_remote.component.create import intercept
from twinkle_remote.component.method import make_remote
from twinkle_remote.protocol.marks import mark_class
from twinkle_remote.protocol.spec import (
    EXECUTES,
    Collect,
    CollectFunction,
    Dispatch,
    Execute,
    FunctionSpec,
    Uneven,
    Weight,
    check_callables,
    choose,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound="Callable[..., Any]")


class FunctionOptions(TypedDict, total=False):
    """The keywords of `remote_function` beside dispatch, execute and collect.

    Attributes:
        sync: Wait for every worker before returning.
        lazy_collect: Leave results on the workers until they are used; None follows `initialize`.
        timeout: Seconds from the call to its deadline; None for none.
        split: Names of the arguments to split; then nothing else is.
        replicate: Names of the arguments that go whole.
        uneven: Rows that the data ranks do not divide: None splits as evenly as it goes (ranks without rows get an
            empty slice of the same type), "strict" refuses, "pad" repeats rows and drops their results (a "mean" or
            "sum" of the workers' own figures counts what was repeated: a method cannot tell those rows from others),
            "drop" leaves the rest out.
        weight: For "mean" and "sum": "rows" weighs by the rows that each data rank was given, repeated ones included;
            "equal" counts each data rank once; a callable weighs by its value for each result. None is "rows" for a
            "mean" where the call divided rows, so that the mean of a mean over rows is what one worker would have
            returned, and "equal" elsewhere.
    """

    sync: bool
    lazy_collect: bool | None
    timeout: float | None
    split: str | Sequence[str] | None
    replicate: str | Sequence[str] | None
    uneven: Uneven | None
    weight: Weight | None


Collecting: TypeAlias = Literal["flatten", "mean", "sum", "first", "last_pp"] | CollectFunction
"""Every collect but "none": the call has the type that the method declares."""


class _Same(Protocol):
    def __call__(self, function: F, /) -> F: ...


class _OrList(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | list[R]]: ...


class _Class(Protocol):
    def __call__(self, cls: C, /) -> C: ...


def remote_class(execute: Execute = "all", *, prefetch: int | None = None, **unknown: Never) -> _Class:
    """Let objects of a class live on a group of workers.

    Three keywords are added to the constructor, and taken off unless it declares them: `remote_group` (name of a
    group), `device_mesh` (the component's mesh, as large as the group) and `instance_id`. Without a `remote_group`, in
    "local" mode, or on a worker of that very group, the object is built in the process; otherwise on the group's
    workers, and the caller holds a handle of the same type whose remote functions run there.

    Args:
        execute: "all" builds it on every worker, "first" on the first one only (a dataset, a tokenizer).
        prefetch: Steps of a `for` loop over a handle that are asked for ahead, at or above 0. None means 1 where nobody
            can notice (`__iter__` does nothing but return the object, and there is no `state_dict`), 0 elsewhere.
        **unknown: None: what is not an option is an error that lists those that are.

    Raises:
        ValueError: An option is not valid; the message says what is.
        TypeError: There is no such option, what is decorated is no class, or its objects cannot be referred to weakly.
    """
    if unknown:
        raise TypeError(f"remote_class has no option {', '.join(unknown)}; its options are execute, prefetch")
    if isinstance(execute, type):
        raise TypeError(f"write @remote_class() with parentheses over {execute.__name__}")
    choose("execute", execute, EXECUTES)
    if prefetch is not None and prefetch < 0:
        raise ValueError(f"prefetch={prefetch} must be at or above 0; None lets the class decide")

    def decorate(cls: C) -> C:
        if not isinstance(cls, type):
            raise TypeError(f"remote_class is for classes, got {cls!r}; for methods there is remote_function")
        if not cls.__weakrefoffset__:
            raise TypeError(
                f"{cls.__name__} has __slots__ without '__weakref__', and a component is referred to weakly: add it to "
                "the slots, or dataclass(slots=True, weakref_slot=True)"
            )
        mark_class(cls, execute, prefetch)
        intercept(cls)
        if "__signature__" not in vars(cls):
            cast("Any", cls).__signature__ = ConstructorSignature()
        return cls

    return decorate


@overload
def remote_function(
    dispatch: Dispatch = ..., execute: Execute = ..., *, collect: Collecting, **options: Unpack[FunctionOptions]
) -> _Same: ...
@overload
def remote_function(
    dispatch: Dispatch, execute: Execute, collect: Collecting, **options: Unpack[FunctionOptions]
) -> _Same: ...
@overload
def remote_function(
    dispatch: Dispatch = ..., execute: Execute = ..., collect: Literal["none"] = ..., **options: Unpack[FunctionOptions]
) -> _OrList: ...
def remote_function(
    dispatch: Dispatch = "slice", execute: Execute = "all", collect: Collect = "none", **options: Any
) -> Any:
    """Let a method of a remote class be called from elsewhere; called inside its worker it just runs.

    Args:
        dispatch: "slice" splits list arguments evenly over the workers; "all" sends everything whole; "slice_dp"
            splits what has rows (lists, tuples, arrays, tensors, frames, tables and datasets, also inside mappings and
            dataclasses) by the mesh's data ranks; or a callable
            `(length, i, args, kwargs, device_mesh) -> (args_i, kwargs_i)` for worker i of length.
        execute: "all" workers that hold the component, or the "first".
        collect: "none" gives the list of the workers' results (the bare result of one worker); "flatten" joins rows
            (what has none is an error), "mean" and "sum" reduce, each counting a data rank once; "first" is the first
            worker's; "last_pp" the list of the last pipeline stage's, one per data rank; or a callable
            `(results, device_mesh)`.
        **options: The keywords of `FunctionOptions`; any other is an error that lists them.

    Raises:
        ValueError: An option is not valid; the message lists what is.
        TypeError: There is no such option, `split` or `replicate` names an argument that the method does not have, a
            callable does not take what it is called with, or what is decorated is no plain method.
    """
    unknown = options.keys() - FunctionOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(("dispatch", "execute", "collect", *FunctionOptions.__annotations__))
        raise TypeError(f"remote_function has no option {', '.join(sorted(unknown))}; its options are {known}")
    check_callables(dispatch, collect)
    for name in ("split", "replicate"):
        value = options.pop(name, None)
        if value is not None:
            options[name] = _names(name, value)
    spec = FunctionSpec(dispatch, execute, collect, **options)
    return functools.partial(make_remote, spec=spec)


def _names(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    names: tuple[object, ...] = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{field}={value!r} is not valid: it is the name of an argument, or several")
    return cast("tuple[str, ...]", names)
