"""The two decorators: for classes whose objects live on a group of workers, and for methods that run there."""

from __future__ import annotations

import functools
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from twinkle_remote.component.construct import ConstructorSignature, intercept
from twinkle_remote.component.method import make_remote, name_functions
from twinkle_remote.protocol.spec import (
    EXECUTES,
    Collect,
    CollectFunction,
    CostRule,
    Dispatch,
    Execute,
    FunctionSpec,
    check_callables,
    choose,
    mark_class,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound="Callable[..., Any]")


class FunctionOptions(TypedDict, total=False):
    """The keywords of `remote_function`, apart from dispatch, execute and collect.

    Attributes:
        sync: Wait for every worker before returning.
        lazy_collect: Leave results on the workers until they are used; None follows `initialize`.
        timeout: Seconds from the call to its deadline; None for no deadline.
        split: Names of the arguments to split; all others go whole.
        replicate: Names of the arguments that go whole; "argument.column" for a column of a mapping or dataclass whose
            other columns are divided.
        collective: The body runs collectives over all ranks of the component, as a forward pass under FSDP does: all
            ranks enter each call together, however few rows it has. A stream gives such a stage one chunk at a time,
            divided over all its data ranks.
        balance: Rows go to data ranks so that their costs are even, not their counts: those of the first divided
            argument, of which a type tells (tokens of `Rollouts`), else 1 for each row. Each rank gets a row where
            there are enough, and results are in the order of the rows, so a function returns one for each. A callable
            takes the costs of all rows and returns others, such as their squares.
        sticky: With dispatch "any", the name of a parameter: calls with equal values of it go to the same data rank, in
            every process. None goes to the least busy one.
    """

    sync: bool
    lazy_collect: bool | None
    timeout: float | None
    split: str | Sequence[str] | None
    replicate: str | Sequence[str] | None
    collective: bool
    balance: bool | CostRule
    sticky: str | None


Collecting: TypeAlias = Literal["flatten", "mean", "sum", "first", "last_pp"] | CollectFunction
"""Every collect except "none": the call returns the type that the method declares."""


class _Same(Protocol):
    def __call__(self, function: F, /) -> F: ...


class _OrList(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | list[R]]: ...


class _Class(Protocol):
    def __call__(self, cls: C, /) -> C: ...


def remote_class(execute: Execute = "all", *, concurrency: int = 64) -> _Class:
    """Allow objects of a class to be built on a group of workers.

    The constructor takes three more keywords: `remote_group` (name of a group), `device_mesh` (the component's mesh, of
    the group's size) and `instance_id`; a class gets them only if it declares them. Without a `remote_group`, in
    "local" mode, or on a worker of the same group, the object is built in the process. Otherwise it is built on the
    group's workers, and the caller holds a handle of the same type, whose remote functions run there.

    Args:
        execute: "all" builds the object on every worker, "first" on the first one only (a dataset, a tokenizer).
        concurrency: Number of async calls of one object that run at once on a worker, at or above 1; the others wait,
            in the order in which they were submitted.

    Raises:
        ValueError: An option is not valid; the message lists the valid values.
        TypeError: The class does not support weak references, or it has a decorator above `@remote_function`.
    """
    if isinstance(execute, type):
        raise TypeError(f"write @remote_class() with parentheses over {execute.__name__}")
    choose("execute", execute, EXECUTES)
    if type(concurrency) is not int or concurrency < 1:
        raise ValueError(f"concurrency={concurrency!r} is not valid: it is a number of async calls, at or above 1")

    def decorate(cls: C) -> C:
        if not cls.__weakrefoffset__:
            raise TypeError(
                f"{cls.__name__} has __slots__ without '__weakref__', and a component is referred to weakly: add it to "
                "the slots, or dataclass(slots=True, weakref_slot=True)"
            )
        name_functions(cls)
        mark_class(cls, execute, concurrency)
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
    """Make a method of a remote class callable on handles; on its own worker, the method runs as usual.

    Args:
        dispatch: "slice" splits list arguments evenly over the workers; "all" sends everything whole; "slice_dp"
            splits what has rows (lists, tuples, arrays, tensors, frames, tables and datasets, also inside mappings and
            dataclasses) by the mesh's data ranks; "any" sends everything whole to one data rank with its peers, the
            one with the fewest calls of this process in flight; or a callable
            `(length, i, args, kwargs, device_mesh) -> (args_i, kwargs_i)` for worker i of length.
        execute: "all" runs on all workers that hold the component, "first" on the first one.
        collect: "none" gives the list of the workers' results (of one worker its bare result); "flatten" joins their
            rows (a result without rows is an error); "mean" and "sum" reduce them, counting each data rank once, and a
            mean weighs by rows where the call divided rows;
            "first" is the first worker's result; "last_pp" is the list of the last pipeline stage's results, one per
            data rank; a callable is called with `(results, device_mesh)`. A type checker keeps the declared type of
            every collect but "none", so that an async method with another one is awaited as it declares.
        **options: The keywords of `FunctionOptions`.

    Raises:
        ValueError: An option is not valid; the message lists the valid values.
        TypeError: An option does not exist, `split` or `replicate` names an argument that the method does not have, a
            callable does not take its arguments, or the decorated object is not a plain method.
    """
    check_callables(dispatch, collect)
    for name in ("split", "replicate"):
        if (value := options.pop(name, None)) is not None:
            options[name] = (value,) if isinstance(value, str) else tuple(value)
    spec = FunctionSpec(dispatch, execute, collect, **options)
    return functools.partial(make_remote, spec=spec)
