"""The options of remote classes and remote functions; they are checked once, at decoration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from twinkle_remote.protocol.call import REMOTE
from twinkle_remote.protocol.modes import COLLECT, DISPATCH

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.modes import DispatchMode


CONCURRENCY = "__twinkle_concurrency__"
SPEC = "__twinkle_spec__"
SUBMIT = "__twinkle_submit__"
NAMES = "__twinkle_names__"
ITSELF = "__twinkle_itself__"  # a remote function, also where a decorator has copied its attributes


def mark_class(cls: Any, execute: Execute, concurrency: int) -> None:
    """Store the options of a class."""
    setattr(cls, CONCURRENCY, concurrency)
    setattr(cls, REMOTE, execute)


def execute_of(cls: type) -> Execute:
    """The ranks on which objects of a remote class are built."""
    return cast("Execute", getattr(cls, REMOTE))


def concurrency_of(cls: type) -> int:
    """The number of async calls of one object that run at once on a worker."""
    return cast("int", getattr(cls, CONCURRENCY))


def options_of(found: object) -> FunctionSpec | None:
    """The options of a remote function, or of a property with a remote getter; None for other values."""
    if isinstance(found, property):
        found = found.fget
    return cast("FunctionSpec | None", getattr(found, SPEC, None))


def options_under(cls: type, name: str) -> FunctionSpec | None:
    """The options of the class attribute with this name; None if it is not remote."""
    return options_of(inspect.getattr_static(cls, name, None))


Execute: TypeAlias = Literal["first", "all"]
DispatchFunction: TypeAlias = Callable[
    [int, int, tuple[Any, ...], dict[str, Any], "DeviceMesh | None"], tuple[Sequence[Any], Mapping[str, Any]]
]
CollectFunction: TypeAlias = Callable[[list[Any], "DeviceMesh | None"], Any]
Dispatch: TypeAlias = Literal["slice", "all", "slice_dp", "any"] | DispatchFunction
Collect: TypeAlias = Literal["none", "flatten", "mean", "sum", "first", "last_pp"] | CollectFunction
Form: TypeAlias = Literal["plain", "coroutine"]
Many: TypeAlias = tuple[frozenset[str], frozenset[str], frozenset[str]]
CostRule: TypeAlias = Callable[[Sequence[float]], Sequence[float]]

EXECUTES = ("first", "all")
IN_ORDER = ("flatten", "mean", "sum", "first")
"""The collects whose value does not show which rank had which rows."""
_OR_NONE = (True, False, None)


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """The options of one remote function; `remote_function` documents them.

    Attributes:
        many: The names of `*args`, those of `**kwargs`, and those of all other parameters, for `names`.
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
    collective: bool = False
    balance: bool | CostRule = False
    sticky: str | None = None
    many: Many = (frozenset(), frozenset(), frozenset())
    form: Form = "plain"
    concurrent: bool = False

    def __post_init__(self) -> None:
        choose("dispatch", self.dispatch, tuple(DISPATCH), or_callable=True)
        choose("execute", self.execute, EXECUTES)
        choose("collect", self.collect, tuple(COLLECT), or_callable=True)
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
        if self.split is not None and not self.divides_rows:
            raise ValueError(f"split= needs dispatch 'slice' or 'slice_dp', got {self.dispatch!r}")
        if self.collective and (self.execute == "first" or self.calls_one):
            raise ValueError(
                "collective=True is for a body that all ranks enter together: use execute='all' with it, and a "
                "dispatch that calls them all"
            )
        if self.sticky is not None and not (self.calls_one and isinstance(self.sticky, str)):
            raise ValueError(
                f"sticky={self.sticky!r} names the parameter whose equal values go to one data rank: it needs "
                f"dispatch='any', got {self.dispatch!r}"
            )

    def _check_balance(self) -> None:
        if self.balance is False:
            return
        if self.balance is not True and not callable(self.balance):
            raise ValueError(
                f"balance={self.balance!r} is not valid: it is True, False, or a callable that takes the costs of "
                "all rows and returns others"
            )
        if not self.divides_rows or self.collect not in IN_ORDER:
            raise ValueError(
                "balance= divides rows by their costs, and gives results in the order of the rows: it needs dispatch "
                f"'slice' or 'slice_dp' and a collect of {', '.join(map(repr, IN_ORDER))}, got {self.dispatch!r} and "
                f"{self.collect!r}"
            )

    @property
    def mode(self) -> DispatchMode | None:
        """Its dispatch mode; None of a callable."""
        return DISPATCH[self.dispatch] if isinstance(self.dispatch, str) else None

    @property
    def divides_rows(self) -> bool:
        """Whether its dispatch mode divides rows."""
        return self.mode is not None and self.mode.divides != "none"

    @property
    def divides_all(self) -> bool:
        """Whether its dispatch mode divides whatever has rows, and not lists alone."""
        return self.mode is not None and self.mode.divides == "rows"

    @property
    def calls_one(self) -> bool:
        """Whether each call goes to one data rank, which its dispatch mode chooses."""
        return self.mode is not None and self.mode.called is not None

    def divides(self, argument: str) -> bool:
        """Whether the rows of an argument are divided, if it has rows and no mark."""
        if self.split is not None:
            return self.names(self.split, argument) and argument not in self.replicate
        return not self.names(self.replicate, argument)

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
        """The arguments that `split=`, `replicate=` and `sticky=` name, also those of which they name a column."""
        chosen = () if self.sticky is None else (self.sticky,)
        return [name.partition(".")[0] for name in (*(self.split or ()), *self.replicate, *chosen)]

    def whole_columns(self, argument: str) -> Sequence[str]:
        """The columns of an argument that go whole, next to rows that are divided: `replicate=("batch.offsets",)`."""
        return [
            column for name, _, column in (one.partition(".") for one in self.replicate) if name == argument and column
        ]

    @property
    def on_loop(self) -> bool:
        """Whether its body runs on the worker's event loop."""
        return self.form == "coroutine"


_WHOLE: Mapping[str, Any] = {
    "dispatch": "all",
    "execute": "all",
    "split": None,
    "replicate": (),
    "balance": False,
    "sticky": None,
}
"""The options of a function whose arguments go whole to each called rank."""


def by_rank_options(spec: FunctionSpec) -> FunctionSpec:
    """The options of a call whose ranks' results are read one by one: the arguments go whole to each called rank.

    A collective function is called on all ranks, and divides its arguments as it asks.
    """
    whole = {"balance": False} if spec.collective else _WHOLE
    return replace(spec, **whole, collect="none", sync=False)


@lru_cache(maxsize=1024)
def collected_elsewhere(spec: FunctionSpec) -> FunctionSpec:
    """The options of a call whose arguments are divided, and whose value is made in time, by another session."""
    return replace(spec, **_WHOLE, collect="first", collective=False, timeout=None)


def form_of(function: object) -> Form:
    """The kind of function that a method is."""
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
