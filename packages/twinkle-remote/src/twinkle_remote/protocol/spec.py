"""The options of remote classes and remote functions; they are checked once, at decoration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.column_rule import ColumnRule
    from twinkle_remote.protocol.component import Component

Execute: TypeAlias = Literal["first", "all"]
DispatchFunction: TypeAlias = Callable[
    [int, int, tuple[Any, ...], dict[str, Any], "DeviceMesh | None"], tuple[Sequence[Any], Mapping[str, Any]]
]
CollectFunction: TypeAlias = Callable[[list[Any], "DeviceMesh | None"], Any]
Dispatch: TypeAlias = Literal["slice", "all", "slice_dp"] | DispatchFunction
Collect: TypeAlias = Literal["none", "flatten", "mean", "sum", "first", "last_pp"] | CollectFunction
Uneven: TypeAlias = Literal["strict", "pad", "drop"]
Form: TypeAlias = Literal["plain", "coroutine", "generator", "async generator"]
Many: TypeAlias = tuple[frozenset[str], frozenset[str], frozenset[str]]
Weight: TypeAlias = Literal["rows", "equal"] | Callable[[Any], float]
CostRule: TypeAlias = Callable[[Sequence[float]], Sequence[float]]

EXECUTES = ("first", "all")
DISPATCHES = ("slice", "all", "slice_dp")
COLLECTS = ("none", "flatten", "mean", "sum", "first", "last_pp")
UNEVENS = ("strict", "pad", "drop")
WEIGHTS = ("rows", "equal")
IN_ORDER = ("flatten", "mean", "sum", "first")
"""The collects whose value does not show which rank had which rows."""
_OR_NONE = (True, False, None)


class Divided(NamedTuple):
    """The first argument of a call whose rows are divided.

    Attributes:
        key: Its place, or its name where it was given by name.
        name: Its name.
        value: The argument.
    """

    key: int | str
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """The options of one remote function; `remote_function` documents them.

    Attributes:
        columns: True if the return annotation is a tuple of fixed length, whose parts "flatten" joins one by one;
            False if it says that the elements of a tuple are rows, None if it does not say either.
        many: The names of `*args`, those of `**kwargs`, and those of all other parameters, for `names`.
        masks: It pads, and takes `valid`, the mask of its rows: False for a repeated one.
        form: What kind of function it is.
        concurrent: It runs while the worker's other tasks do, not after them.
    """

    dispatch: Dispatch = "slice"
    execute: Execute = "all"
    collect: Collect = "none"
    sync: bool = False
    lazy_collect: bool | None = None
    timeout: float | None = None
    split: tuple[str, ...] | None = None
    replicate: tuple[str, ...] = ()
    uneven: Uneven | None = None
    weight: Weight | None = None
    collective: bool = False
    balance: bool | str | CostRule = False
    reads: ColumnRule | None = None
    adds: ColumnRule | None = None
    columns: bool | None = None
    many: Many = (frozenset(), frozenset(), frozenset())
    masks: bool = False
    form: Form = "plain"
    concurrent: bool = False

    def __post_init__(self) -> None:
        choose("dispatch", self.dispatch, DISPATCHES, or_callable=True)
        choose("execute", self.execute, EXECUTES)
        choose("collect", self.collect, COLLECTS, or_callable=True)
        if self.uneven is not None:
            choose("uneven", self.uneven, UNEVENS)
        if self.weight is not None:
            choose("weight", self.weight, WEIGHTS, or_callable=True)
            if self.collect not in ("mean", "sum"):
                raise ValueError(f"weight= weighs a reduction: collect must be 'mean' or 'sum', got {self.collect!r}")
        timed = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool) and self.timeout > 0
        if self.timeout is not None and not timed:
            raise ValueError(f"timeout={self.timeout!r} is not valid: it is seconds above 0, or None for no deadline")
        for field, value, valid in (
            ("sync", self.sync, (True, False)),
            ("lazy_collect", self.lazy_collect, _OR_NONE),
            ("collective", self.collective, (True, False)),
        ):
            if not any(value is one for one in valid):
                raise ValueError(f"{field}={value!r} is not valid: it is one of {', '.join(map(repr, valid))}")
        self._check_balance()
        if self.split and set(self.split) & set(self.replicate):
            raise ValueError(f"split={self.split} and replicate={self.replicate} name the same arguments")
        if (self.split is not None or self.uneven) and self.dispatch not in ("slice", "slice_dp"):
            raise ValueError(f"split= and uneven= need dispatch 'slice' or 'slice_dp', got {self.dispatch!r}")
        if self.collective and self.execute == "first":
            raise ValueError("collective=True is for a body that all ranks enter together: use execute='all' with it")

    def _check_balance(self) -> None:
        if self.balance is False:
            return
        named = isinstance(self.balance, str) and self.balance.isidentifier()
        if self.balance is not True and not named and not callable(self.balance):
            raise ValueError(
                f"balance={self.balance!r} is not valid: it is True, False, the name of a flag of the constructor, or "
                "a callable that takes the costs of all rows and returns others"
            )
        if self.dispatch not in ("slice", "slice_dp") or self.collect not in IN_ORDER:
            raise ValueError(
                "balance= divides rows by their costs, and gives results in the order of the rows: it needs dispatch "
                f"'slice' or 'slice_dp' and a collect of {', '.join(map(repr, IN_ORDER))}, got {self.dispatch!r} and "
                f"{self.collect!r}"
            )
        if self.uneven is not None:
            raise ValueError(
                f"uneven={self.uneven!r} is for ranks with equally many rows, and balance= for ranks with equal costs: "
                "use one of them"
            )

    @property
    def rule(self) -> bool | CostRule:
        """The rule by which rows are divided: False by count, True by costs, or a callable that takes all costs."""
        return self.balance if not isinstance(self.balance, str) else True

    def of(self, component: Component, target: object) -> FunctionSpec:
        """The options for a component, as the arguments of its constructor say; `target` is the function's name."""
        if not isinstance(self.balance, str) and (self.reads is None or not self.reads.of_constructor):
            return self
        return _of(self, component.off, dict(component.reads).get(str(target)))

    def divides(self, argument: str) -> bool:
        """Whether the rows of an argument are divided, if it has rows and no mark."""
        if self.split is not None:
            return self.names(self.split, argument) and argument not in self.replicate
        return not self.names(self.replicate, argument)

    def divided(
        self, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any], has_rows: Callable[[Any], bool]
    ) -> Divided | None:
        """The first divided argument, whose columns `reads` and `adds` name; None if none has rows.

        Args:
            names: Parameter names of the positional arguments.
            args: The positional arguments.
            kwargs: The keyword arguments, which come in the order of the function's parameters.
            has_rows: Whether an argument has rows, or is lazy.
        """
        rule = self.reads or self.adds
        order = {} if rule is None else {name: place for place, name in enumerate(rule.order)}
        given: list[tuple[int | str, str, Any]] = [(i, names[i], value) for i, value in enumerate(args)]
        given += [(name, name, kwargs[name]) for name in sorted(kwargs, key=lambda name: order.get(name, len(order)))]
        found = next((one for one in given if self.divides(one[1]) and has_rows(one[2])), None)
        return None if found is None else Divided(*found)

    def names(self, chosen: Sequence[str], argument: str) -> bool:
        """Whether names in `split=` or `replicate=` stand for an argument.

        An argument among `*args` or `**kwargs` is also called by the name of these.

        Args:
            chosen: The names.
            argument: Name of an argument; "args[i]" of one by place that has no name.
        """
        if argument in chosen:
            return True
        extra, options, declared = self.many
        if "[" in argument:
            return not extra.isdisjoint(chosen)
        return argument not in declared and not options.isdisjoint(chosen)

    @property
    def named_arguments(self) -> Sequence[str]:
        """The arguments that `split=` and `replicate=` name, also those of which they name a column."""
        return [name.partition(".")[0] for name in (*(self.split or ()), *self.replicate)]

    def whole_columns(self, argument: str) -> Sequence[str]:
        """The columns of an argument that go whole, next to rows that are divided: `replicate=("batch.offsets",)`."""
        return [
            column for name, _, column in (one.partition(".") for one in self.replicate) if name == argument and column
        ]

    @property
    def columns_unknown(self) -> bool:
        """Whether the rows of results are joined, and the annotation does not say what the elements of a tuple are."""
        return self.collect == "flatten" and self.columns is None

    @property
    def on_loop(self) -> bool:
        """Whether its body runs on the worker's event loop."""
        return self.form in ("coroutine", "async generator")

    @property
    def yields(self) -> bool:
        """Whether it yields items."""
        return self.form in ("generator", "async generator")


@lru_cache
def _of(spec: FunctionSpec, off: frozenset[str], names: tuple[Hashable, ...] | None) -> FunctionSpec:
    balance = spec.balance not in off if isinstance(spec.balance, str) else spec.balance
    return replace(spec, balance=balance, reads=spec.reads and spec.reads.known(names))


def by_rank_options(spec: FunctionSpec) -> FunctionSpec:
    """The options of a call whose ranks' results are read one by one: the arguments go whole to each called rank.

    A collective function is called on all ranks, and divides its arguments as it asks.
    """
    if spec.collective:
        return replace(spec, collect="none", sync=False, weight=None, balance=False)
    return replace(
        spec,
        dispatch="all",
        execute="all",
        collect="none",
        sync=False,
        split=None,
        replicate=_undivided(spec),
        uneven=None,
        weight=None,
        balance=False,
    )


def _undivided(spec: FunctionSpec) -> tuple[str, ...]:
    """The arguments that a function never divides: of those that go whole, others have the columns of `reads=`."""
    whole = {name for name in spec.replicate if "." not in name}
    if spec.split is not None:
        whole.update(*spec.many)
        whole.difference_update(name.partition(".")[0] for name in spec.split)
    return tuple(sorted(whole))


def whole_rows_options(spec: FunctionSpec) -> FunctionSpec:
    """The options of a call whose workers keep whole rows, as the function returns them, also if it adds columns.

    Such a function needs all columns of its argument, also those that it does not read.
    """
    return spec if spec.adds is None else replace(spec, adds=None, reads=None)


@lru_cache(maxsize=1024)
def collected_elsewhere(spec: FunctionSpec) -> FunctionSpec:
    """The options of a call whose arguments are divided, and whose value is made, by another process."""
    return replace(
        spec,
        dispatch="all",
        collect="first",
        split=None,
        replicate=(),
        uneven=None,
        weight=None,
        balance=False,
        reads=None,
        adds=None,
        columns=None,
    )


def form_of(function: object) -> Form:
    """The kind of function that a method is."""
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if inspect.isgeneratorfunction(function):
        return "generator"
    return "coroutine" if inspect.iscoroutinefunction(function) else "plain"


def choose(field: str, value: object, valid: Sequence[str], *, or_callable: bool = False) -> None:
    """Check one option against its valid values.

    Raises:
        ValueError: The value is not valid; the message lists the valid values.
    """
    if isinstance(value, str) and value in valid:
        return
    if or_callable and callable(value):
        return
    listing = ", ".join(repr(name) for name in valid) + (" or a callable" if or_callable else "")
    raise ValueError(f"{field}={value!r} is not valid: it is one of {listing}")


MASK = "valid"


def with_mask(spec: FunctionSpec, signature: inspect.Signature) -> FunctionSpec:
    """The options of a function that may pad, completed by whether it takes the mask.

    Raises:
        TypeError: The function pads and is reduced, and cannot know repeated rows from others.
    """
    if spec.uneven != "pad":
        return spec
    mask = signature.parameters.get(MASK)
    if mask is not None and mask.default is mask.empty:
        raise TypeError(f"{MASK}= of a function that pads is filled in by the call: give it a default, as {MASK}=None")
    if mask is None and spec.collect in ("mean", "sum"):
        raise TypeError(
            f"uneven='pad' repeats rows, and collect={spec.collect!r} would count them twice: use another uneven=, or "
            f"take the mask, a parameter {MASK}=None: a list that is False for each repeated row"
        )
    return replace(spec, masks=mask is not None)


def check_column_rules(spec: FunctionSpec) -> None:
    """Check `reads` and `adds`, which name columns of an argument that is divided by rows.

    Raises:
        ValueError: The other options do not divide rows with columns, or do not give a row for each.
    """
    for word, rule in (("reads", spec.reads), ("adds", spec.adds)):
        if rule is not None and spec.dispatch != "slice_dp" and (spec.dispatch != "slice" or spec.split is None):
            raise ValueError(
                f"{word}= names columns of the first argument that is divided: it needs dispatch 'slice_dp', or "
                f"'slice' with split=, got {spec.dispatch!r}"
            )
    if spec.adds is None:
        return
    if spec.collect != "flatten":
        raise ValueError(f"adds= joins columns to rows: it needs collect 'flatten', got {spec.collect!r}")
    if spec.uneven in ("pad", "drop"):
        raise ValueError(
            f"adds= needs a row for each row, and uneven={spec.uneven!r} makes others: use None or 'strict'"
        )


def check_callables(dispatch: object, collect: object) -> None:
    """Check that a callable dispatch or collect takes the arguments of its later calls.

    Raises:
        TypeError: It does not take them.
    """
    for field, value, given in (
        ("dispatch", dispatch, ("length", "i", "args", "kwargs", "device_mesh")),
        ("collect", collect, ("results", "device_mesh")),
    ):
        if not callable(value):
            continue
        try:
            signature = inspect.signature(value)
        except ValueError:  # a C function without a signature
            continue
        try:
            signature.bind(*given)
        except TypeError as error:
            name = getattr(value, "__qualname__", repr(value))
            hint = "; to decorate it, write @remote_function() with parentheses" if field == "dispatch" else ""
            raise TypeError(
                f"{field} is called with ({', '.join(given)}), and {name}{signature}: {error}{hint}"
            ) from None


_ROWS = frozenset({"Sequence", "Iterable", "Collection"})


def returns_columns(spec: FunctionSpec, annotation: object) -> FunctionSpec:
    """The options of a function, completed by its return annotation.

    `tuple[X, ...]` says that the elements of a tuple are rows, which are joined like those of a list. A tuple of fixed
    length (`tuple[list[str], Tensor]`) has parts instead of rows: "flatten" joins each part, and the collected value
    has the same type. Any other annotation does not say what the elements of a tuple are.
    """
    if spec.collect != "flatten" or annotation is inspect.Signature.empty:
        return spec
    return replace(spec, columns=_says_columns(annotation))


def _says_columns(annotation: object) -> bool | None:
    if isinstance(annotation, str):
        head, _, inside = annotation.strip().partition("[")
        head = head.rpartition(".")[2]
        if head in _ROWS:
            return False
        if head not in ("tuple", "Tuple") or not inside:
            return None
        return inside.rpartition("]")[0].rpartition(",")[2].strip() != "..."
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        said = {_says_columns(each) for each in get_args(annotation) if each is not type(None)}
        return said.pop() if len(said) == 1 else None
    origin = get_origin(annotation)
    if getattr(origin, "__name__", "") in _ROWS:
        return False
    args = get_args(annotation) if origin is tuple else ()
    return args[-1] is not Ellipsis if args else None
