"""A stage: a remote function, called whole or on one data rank; or a plain function of one value."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.arguments import Replicated, is_divided
from twinkle_remote.call.lazy_values.assembled import ResultRows, assemble
from twinkle_remote.call.lazy_values.lazy import Lazy
from twinkle_remote.call.send import start
from twinkle_remote.component.method import bind
from twinkle_remote.errors import CollectError
from twinkle_remote.failures.frames import call_line
from twinkle_remote.protocol.call import Call, component_of
from twinkle_remote.protocol.modes import data_peers
from twinkle_remote.protocol.spec import SPEC, FunctionSpec, by_rank_options, concurrency_of
from twinkle_remote.rows.cut import may_have_rows, rows_of
from twinkle_remote.sessions.weights import WorkersOf
from twinkle_remote.streams.schedule import StageRule
from twinkle_remote.streams.source import PlacedRows
from twinkle_remote.worker.ping import ping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.call import Component

_WHOLE = FunctionSpec(dispatch="all")
_ROWS = ("flatten", "first", "none", "last_pp")


@dataclass(frozen=True, slots=True)
class RemoteStage:
    """A bound remote function, or a partial of one, whose calls ahead of the loop go to one data rank each.

    That of a collective function has one data rank, of all its ranks: they divide the rows of each call.

    Attributes:
        function: The bound function.
        component: Its component.
        spec: Its options, as each call ahead has them: whole on all peers of a data rank, or divided if collective.
        names: Names of its arguments by place, the rows last.
        peers: The ranks of each data rank.
        collects: The ranks of each data rank whose results are the rows of a call, in order.
        name: Class.method.
        args: Its arguments by place before the rows.
        kwargs: Its arguments by name.
    """

    function: Callable[..., Any]
    component: Component
    spec: FunctionSpec
    names: Sequence[str]
    peers: Sequence[tuple[int, ...]]
    collects: Sequence[tuple[int, ...]]
    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def run(self, rows: Any) -> Any:
        """Call it whole, for a batch."""
        return self.function(*self.args, rows, **self.kwargs)

    def workers(self, data_rank: int) -> WorkersOf:
        """The workers of a data rank."""
        return WorkersOf(self.component, self.peers[data_rank])

    def begin(self, data_rank: int, rows: Any, label: str) -> PendingCall:
        """Call it on all ranks of a data rank; calls from one process reach all ranks in one order.

        Args:
            data_rank: The data rank.
            rows: The rows.
            label: Which rows these are, for the timeline.
        """
        part = replace(self.component, ranks=self.peers[data_rank])
        target, line = self.function.__name__, call_line()
        args, kwargs = (*self.args, rows), dict(self.kwargs)
        call = Call("method", part, target, self.name, self.spec, line, self.names, args, kwargs, reads_ranks=True)
        pending = start(call, prefetched=True)
        pending.record.label = label
        return pending

    def made(self, data_rank: int, pending: PendingCall, count: int) -> PlacedRows:
        """The rows of a call that is done; they stay where they are.

        Args:
            data_rank: The data rank.
            pending: The call.
            count: The rows that it was given.

        Raises:
            CollectError: It did not return a row for each row.
        """
        ranks = self.collects[data_rank]
        outcomes = [pending.outcome(rank) for rank in ranks]
        counts = [outcome.rows for outcome in outcomes]
        check_rows(self.name, None if None in counts else sum(filter(None, counts)), count)
        value: Any = assemble([ResultRows(pending, rank, 0, n or 0) for rank, n in zip(ranks, counts, strict=True)])
        return PlacedRows(value, count, (self.component.group, ranks, [outcome.payload for outcome in outcomes]))

    def ask(self, data_rank: int) -> PendingCall:
        """Call nothing on all ranks of a data rank, to learn whether they are there."""
        part = replace(self.component, ranks=self.peers[data_rank])
        call = Call("function", part, ping, self.name, _WHOLE, call_line(), reads_ranks=True)
        return start(call, prefetched=True)


@dataclass(frozen=True, slots=True)
class PlainStage:
    """A function of one value, which runs in this process; `keeps` has it say of each row whether it is kept."""

    function: Callable[[Any], Any]
    name: str
    keeps: bool = False

    def run(self, rows: Any) -> Any:
        """Call it for a batch."""
        return self.function(rows)

    def refused(self, rows: Any, count: int) -> list[int]:
        """Of a stage that keeps rows: the places of those that it does not keep."""
        flags = self.run(rows)
        flags = flags.result() if isinstance(flags, Lazy) else flags
        kept = [bool(flag) for flag in flags]
        check_rows(f"keep={self.name}", len(kept), count)
        return [place for place, keep in enumerate(kept) if not keep]


Stage = RemoteStage | PlainStage


def check_rows(name: str, made: int | None, given: int) -> None:
    """Refuse the result of a stage that has another number of rows than its argument.

    Raises:
        CollectError: It has.
    """
    if made != given:
        raise CollectError(
            f"{name} returned {'a value without rows' if made is None else f'{made} rows'} for {given} rows: a stage "
            "of a stream returns one row for each row that it is given; a row may be a group of answers"
        )


def run_plain(stage: PlainStage, rows: Any, count: int) -> PlacedRows:
    """Call a plain stage; this waits for a lazy result of it."""
    value = stage.run(rows)
    value = value.result() if isinstance(value, Lazy) else value
    check_rows(stage.name, rows_of(value, stage.name), count)
    return PlacedRows(value, count)


def stage_of(function: Any) -> Stage:
    """The stage of a function.

    Raises:
        TypeError: It is neither a remote function of a component nor callable, or a partial's arguments do not fit it.
        ValueError: A partial's argument would be divided with the rows.
    """
    if not callable(function):
        raise TypeError(f"a stage is a remote function of a component, or a function of one value, got {function!r}")
    whole, args, kwargs = function, (), dict[str, Any]()
    while isinstance(function, functools.partial):
        args, kwargs, function = (*function.args, *args), {**function.keywords, **kwargs}, function.func
    component = component_of(getattr(function, "__self__", None))
    spec = getattr(function, SPEC, None)
    if spec is None or component is None:
        return PlainStage(whole, getattr(whole, "__qualname__", repr(whole)))
    name = f"{component.name}.{function.__name__}"
    names = bind(function, component.name, (*args, None), kwargs)
    for key, value in [*zip(names, args, strict=False), *kwargs.items()]:
        has_rows = isinstance(value, Lazy) or (not isinstance(value, Replicated) and may_have_rows(value))
        if has_rows and is_divided(spec, key, value) and not callable(spec.dispatch):
            raise ValueError(
                f"{name} divides {key} with {names[len(args)]}, and as an argument of a stage's functools.partial it "
                "is the same for all rows: pass Replicate(value), or name it in replicate="
            )
    peers, collects = _data_ranks(component, spec)
    return RemoteStage(function, component, by_rank_options(spec), names, peers, collects, name, args, kwargs)


def check_ahead(stage: Stage) -> None:
    """Refuse a stage that cannot run for a part of the rows.

    Raises:
        ValueError: It divides by a callable, or does not return rows.
    """
    if not isinstance(stage, RemoteStage):
        return
    spec: FunctionSpec = getattr(stage.function, SPEC)
    if callable(spec.dispatch):
        raise ValueError(
            f"{stage.name} divides its rows by a callable, which needs all ranks of a call: use dispatch='slice_dp' "
            "with ahead=n, or ahead=0"
        )
    if spec.sticky is not None:
        raise ValueError(
            f"{stage.name} has sticky={spec.sticky!r}, and a stream chooses the data rank of each row by itself: use "
            "ahead=0, or a function without sticky="
        )
    if spec.collect not in _ROWS:
        raise ValueError(
            f"{stage.name} has collect={spec.collect!r} and does not return rows: a stage with ahead=n has "
            "collect='flatten', 'first' or 'none'"
        )


_Ranks = list[tuple[int, ...]]


def _data_ranks(component: Component, spec: FunctionSpec) -> tuple[_Ranks, _Ranks]:
    """The ranks of each data rank, and those of these whose results count."""
    ranks = component.ranks[:1] if spec.execute == "first" else component.ranks
    mesh = component.mesh
    whole = mesh is not None and len(ranks) == mesh.world_size
    if spec.dispatch == "all" and len(ranks) > 1:
        first = mesh.collect_ranks[0] if mesh is not None and whole and spec.collect != "first" else ranks[0]
        return [ranks], [(first,)]
    if not (spec.divides_all or spec.calls_one) or mesh is None or not whole:
        alone: _Ranks = [(rank,) for rank in ranks]
        return ([ranks], [ranks]) if spec.collective else (alone, list(alone))
    if spec.collective:
        return [ranks], [tuple(mesh.collect_ranks)]
    return list(data_peers(ranks, mesh)), [(rank,) for rank in mesh.collect_ranks]


def rules_of(stages: Sequence[Stage]) -> tuple[list[int], list[StageRule]]:
    """Number of data ranks of each pool of workers, and for each stage its pool and what it takes at a time.

    A worker runs its `def` calls one after the other, and the `async def` ones of a component next to these, as many at
    once as its class says; such a call takes one row, because a row should not wait for other rows of its call.
    """
    pools: list[int] = []
    known: dict[Any, int] = {}
    rules = []
    for stage in stages:
        key: Any = object()
        ranks, calls, many = 1, 1, True
        if isinstance(stage, RemoteStage):
            key = (stage.component.group, tuple(stage.peers), stage.spec.collective)
            ranks = len(stage.peers)
            if stage.spec.on_loop and not stage.spec.collective:
                calls, many = concurrency_of(type(getattr(stage.function, "__self__", None))), False
        if key not in known:
            known[key] = len(pools)
            pools.append(ranks)
        rules.append(StageRule(known[key], calls, many))
    return pools, rules
