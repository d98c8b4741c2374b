"""The options of remote classes and functions, checked once at decoration, and the meaning of their words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from twinkle_remote.protocol.messages import REMOTE

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh


Ranks: TypeAlias = Sequence[int]
Combine: TypeAlias = Callable[[Sequence[Any], "Sequence[float] | None", str], Any]


@dataclass(slots=True)
class Load:
    """The calls that this process has given to one data rank.

    Attributes:
        in_flight: Those that are not done.
        made: All of them, and a part of one by which equal loads have another order in each worker.
    """

    in_flight: int = 0
    made: float = 0


@dataclass(frozen=True, slots=True)
class DispatchMode:
    """The way in which the arguments of a call go to ranks.

    Attributes:
        divides: The arguments whose rows are divided, where no mark says otherwise: none, lists, or all with rows.
        shares: Takes the called ranks and the mesh; returns the share that each rank gets, and the number of shares.
        each: Every called rank has rows of its own, so each counts; otherwise each data rank counts once.
        called: The data rank that is called, with all its peers: takes the load of each, and the text of the `sticky=`
            argument, or None. Without this function all ranks are called.
    """

    divides: Literal["none", "lists", "rows"]
    shares: Callable[[Ranks, DeviceMesh | None], tuple[Ranks, int]]
    each: bool = False
    called: Callable[[Sequence[Load], str | None], int] | None = None


@dataclass(frozen=True, slots=True)
class CollectWord:
    """The way in which the results of the called ranks become one value.

    Attributes:
        combine: "one" (the first value), "list", "rows" (joined), or a function of the values, their weights by rows
            (None where no rows were divided) and what they are, for messages.
        reads: The ranks whose values count: all, the first, each data rank once, or, where each rank has rows of its
            own, all of them.
    """

    combine: Literal["one", "list", "rows"] | Combine
    reads: Literal["all", "first", "data", "shares"] = "shares"


def one_share_each(ranks: Ranks, mesh: DeviceMesh | None) -> tuple[Ranks, int]:
    """A share for each called rank."""
    return range(len(ranks)), len(ranks)


def share_of_data_rank(ranks: Ranks, mesh: DeviceMesh | None) -> tuple[Ranks, int]:
    """A share for each data rank of the mesh; for each rank without a mesh."""
    if mesh is None or len(ranks) != mesh.world_size:
        return one_share_each(ranks, mesh)
    return _data_ranks(mesh), mesh.data_world_size


@lru_cache(maxsize=64)
def _data_ranks(mesh: DeviceMesh) -> Ranks:
    return [mesh.data_rank(rank) for rank in sorted(mesh.ranks)]


def data_peers(ranks: Ranks, mesh: DeviceMesh | None) -> Sequence[tuple[int, ...]]:
    """The ranks of each data rank, ascending; without a mesh, or on one of another size, each rank is alone."""
    share, count = share_of_data_rank(ranks, mesh)
    peers: list[list[int]] = [[] for _ in range(count)]
    for rank, index in zip(ranks, share, strict=True):
        peers[index].append(rank)
    return list(map(tuple, peers))


def least_busy(loads: Sequence[Load], key: str | None) -> int:
    """The data rank with the fewest calls in flight, of these the one that had the fewest; by a key always the same."""
    if key is not None:
        from zlib import crc32  # the same in every process, as hash() is not

        return crc32(key.encode()) % len(loads)
    return min(range(len(loads)), key=lambda index: (loads[index].in_flight, loads[index].made))


def _reduced(how: str, values: Sequence[Any], weights: Sequence[float] | None, path: str) -> Any:
    from twinkle_remote.rows.reduce import reduce  # few workers reduce

    return reduce(how, values, weights if how == "mean" else None, path)


DISPATCH: dict[str, DispatchMode] = {
    "slice": DispatchMode("lists", one_share_each, each=True),
    "all": DispatchMode("none", one_share_each),
    "slice_dp": DispatchMode("rows", share_of_data_rank),
    "any": DispatchMode("none", one_share_each, called=least_busy),
}
"""The dispatch modes by name."""

COLLECT: dict[str, CollectWord] = {
    "none": CollectWord("list", reads="all"),
    "flatten": CollectWord("rows"),
    "mean": CollectWord(partial(_reduced, "mean")),
    "sum": CollectWord(partial(_reduced, "sum")),
    "first": CollectWord("one", reads="first"),
    "last_pp": CollectWord("list", reads="data"),
}
"""The collect words by name."""


CONCURRENCY = "__twinkle_concurrency__"
SPEC = "__twinkle_spec__"
CALL = "__twinkle_call__"  # makes the `Call` of an object, arguments and a line, whose arguments fit
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
Many: TypeAlias = tuple[frozenset[str], frozenset[str], frozenset[str]]
CostRule: TypeAlias = Callable[[Sequence[float]], Sequence[float]]

EXECUTES = ("first", "all")
IN_ORDER = ("flatten", "mean", "sum", "first")
"""The collects whose value does not show which rank had which rows."""


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """The options of one remote function; `remote_function` documents them.

    Attributes:
        many: The names of `*args`, those of `**kwargs`, and those of all other parameters, for `names`.
        on_loop: It is a coroutine function, whose body runs on the worker's event loop.
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
    on_loop: bool = False

    def __post_init__(self) -> None:
        choose("dispatch", self.dispatch, tuple(DISPATCH), or_callable=True)
        choose("execute", self.execute, EXECUTES)
        choose("collect", self.collect, tuple(COLLECT), or_callable=True)
        choose("sync", self.sync, (True, False))
        choose("lazy_collect", self.lazy_collect, (True, False, None))
        choose("collective", self.collective, (True, False))
        timed = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool) and self.timeout > 0
        if self.timeout is not None and not timed:
            raise ValueError(f"timeout={self.timeout!r} is not valid: it is seconds above 0, or None for no deadline")
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


def choose(field: str, value: object, valid: Sequence[object], *, or_callable: bool = False) -> None:
    """Check one option against its valid values.

    Raises:
        ValueError: The value is not valid; the message lists the valid values.
    """
    if not (or_callable and callable(value)) and not any(type(value) is type(one) and value == one for one in valid):
        listing = ", ".join(map(repr, valid)) + (" or a callable" if or_callable else "")
        raise ValueError(f"{field}={value!r} is not valid: it is one of {listing}")


def check_callables(dispatch: object, collect: object) -> None:
    """Check that a callable dispatch or collect takes the arguments of its later calls.

    Raises:
        TypeError: It does not take them.
    """
    hint = "; to decorate it, write @remote_function() with parentheses"
    for field, value, given in (
        ("dispatch", dispatch, ("length", "i", "args", "kwargs", "device_mesh")),
        ("collect", collect, ("results", "device_mesh")),
    ):
        if callable(value):
            signature = inspect.signature(value)
            try:
                signature.bind(*given)
            except TypeError as error:
                name, more = getattr(value, "__qualname__", repr(value)), hint if field == "dispatch" else ""
                text = f"{field} is called with ({', '.join(given)}), and {name}{signature}: {error}{more}"
                raise TypeError(text) from None
