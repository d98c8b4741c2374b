"""The two decorators: for classes whose objects live on a group of workers, and for methods that run there."""

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

from twinkle_remote.component.construct import intercept
from twinkle_remote.component.constructor import ConstructorSignature
from twinkle_remote.component.decorated import check_decorators
from twinkle_remote.component.method import make_remote
from twinkle_remote.protocol.column_rule import column_rule
from twinkle_remote.protocol.marks import mark_class
from twinkle_remote.protocol.spec import (
    EXECUTES,
    Collect,
    CollectFunction,
    CostRule,
    Dispatch,
    Execute,
    FunctionSpec,
    Uneven,
    Weight,
    check_callables,
    check_column_rules,
    choose,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

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
        uneven: What happens if the number of data ranks does not divide the rows. None splits as evenly as possible
            (a rank without rows gets an empty slice of the same type). "strict" raises an error. "pad" repeats rows
            and drops their results (a "mean" or "sum" of numbers that the workers compute counts the repeated rows
            too). "drop" leaves the remainder out.
        weight: Weights of "mean" and "sum". "rows" weighs each data rank by its number of rows, including repeated
            ones; "equal" gives each data rank the same weight; a callable returns the weight of each result. None
            means "rows" for a "mean" whose call divided rows (the mean of the ranks' means is then the mean over all
            rows), and "equal" in all other cases.
        collective: The body runs collectives over all ranks of the component, as a forward pass under FSDP does: all
            ranks enter each call together, however few rows it has. A stream gives such a stage one chunk at a time,
            divided over all its data ranks.
        balance: Rows go to data ranks so that their costs are even, not their counts: those of the first divided
            argument, of which a type tells (tokens of `Rollouts`), else 1 for each row. Each rank gets a row where
            there are enough, and results are in the order of the rows, so a function returns one for each. A callable
            takes the costs of all rows and returns others, such as their squares. A text names a flag of the class's
            constructor, so that each component says whether.
        reads: The columns that the function reads of its first divided argument: a name, several, or a function of the
            call's other arguments, which asks for them by the names of its parameters (defaults are bound) and returns
            names, or None for all columns. It gets the value of a lazy argument, for which the call waits; an argument
            whose rows are divided is a TypeError. A parameter `constructor`, which then stands alone, gets the
            arguments of the class's constructor by name. The other columns are not fetched, and to use one in the
            function is an error. Where a function names the columns, an argument without columns, such as a list, is
            read whole.
        adds: The columns that the function adds to its first divided argument, likewise. It returns the rows with these
            columns, one for each row that it gets, as without the word. Workers keep only these columns, and the
            caller gets them joined to the argument, whose other columns stay in place and as they were.
    """

    sync: bool
    lazy_collect: bool | None
    timeout: float | None
    split: str | Sequence[str] | None
    replicate: str | Sequence[str] | None
    uneven: Uneven | None
    weight: Weight | None
    collective: bool
    balance: bool | str | CostRule
    reads: Columns | None
    adds: Columns | None


Columns: TypeAlias = "str | Sequence[Hashable] | Callable[..., str | Sequence[Hashable] | None]"
Collecting: TypeAlias = Literal["flatten", "mean", "sum", "first", "last_pp"] | CollectFunction
"""Every collect except "none": the call returns the type that the method declares."""


class _Same(Protocol):
    def __call__(self, function: F, /) -> F: ...


class _OrList(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | list[R]]: ...


class _Class(Protocol):
    def __call__(self, cls: C, /) -> C: ...


def remote_class(
    execute: Execute = "all", *, prefetch: int | None = None, concurrency: int = 64, **unknown: Never
) -> _Class:
    """Allow objects of a class to be built on a group of workers.

    The constructor takes three more keywords: `remote_group` (name of a group), `device_mesh` (the component's mesh, of
    the group's size) and `instance_id`; a class gets them only if it declares them. Without a `remote_group`, in
    "local" mode, or on a worker of the same group, the object is built in the process. Otherwise it is built on the
    group's workers, and the caller holds a handle of the same type, whose remote functions run there.

    Args:
        execute: "all" builds the object on every worker, "first" on the first one only (a dataset, a tokenizer).
        prefetch: Steps that a `for` loop over a handle requests ahead, at or above 0. None means 1 if that has no
            visible effect (`__iter__` only returns the object, and the class has no `state_dict`), and 0 otherwise.
        concurrency: Number of async calls of one object that run at once on a worker, at or above 1; the others wait,
            in the order in which they were submitted.
        **unknown: Any other keyword is an error that lists the options.

    Raises:
        ValueError: An option is not valid; the message lists the valid values.
        TypeError: An option does not exist, the decorated object is not a class, the class does not support weak
            references, or it has a decorator above `@remote_function`.
    """
    if unknown:
        known = "execute, prefetch, concurrency"
        raise TypeError(f"remote_class has no option {', '.join(unknown)}; its options are {known}")
    if isinstance(execute, type):
        raise TypeError(f"write @remote_class() with parentheses over {execute.__name__}")
    choose("execute", execute, EXECUTES)
    if prefetch is not None and prefetch < 0:
        raise ValueError(f"prefetch={prefetch} must be at or above 0; with None the class decides")

    if type(concurrency) is not int or concurrency < 1:
        raise ValueError(f"concurrency={concurrency!r} is not valid: it is a number of async calls, at or above 1")

    def decorate(cls: C) -> C:
        if not isinstance(cls, type):
            raise TypeError(f"remote_class is for classes, got {cls!r}; for methods there is remote_function")
        if not cls.__weakrefoffset__:
            raise TypeError(
                f"{cls.__name__} has __slots__ without '__weakref__', and a component is referred to weakly: add it to "
                "the slots, or dataclass(slots=True, weakref_slot=True)"
            )
        check_decorators(cls)
        mark_class(cls, execute, prefetch, concurrency)
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
            dataclasses) by the mesh's data ranks; or a callable
            `(length, i, args, kwargs, device_mesh) -> (args_i, kwargs_i)` for worker i of length.
        execute: "all" runs on all workers that hold the component, "first" on the first one.
        collect: "none" gives the list of the workers' results (of one worker its bare result); "flatten" joins their
            rows (a result without rows is an error); "mean" and "sum" reduce them, counting each data rank once;
            "first" is the first worker's result; "last_pp" is the list of the last pipeline stage's results, one per
            data rank; a callable is called with `(results, device_mesh)`. The items of a generator function come one
            by one: "none" and "first" are the same there. A type checker keeps the declared type of every collect but
            "none", so that an async method with another one is awaited as it declares.
        **options: The keywords of `FunctionOptions`; any other keyword is an error that lists them.

    Raises:
        ValueError: An option is not valid; the message lists the valid values.
        TypeError: An option does not exist, `split` or `replicate` names an argument that the method does not have, a
            callable does not take its arguments, or the decorated object is not a plain method.
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
    for word in ("reads", "adds"):
        options[word] = column_rule(word, options.get(word))
    spec = FunctionSpec(dispatch, execute, collect, **options)
    check_column_rules(spec)
    return functools.partial(make_remote, spec=spec)


def _names(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    names: tuple[object, ...] = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{field}={value!r} is not valid: it is the name of an argument, or several")
    return cast("tuple[str, ...]", names)
