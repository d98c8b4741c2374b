"""A stage: a remote function, called whole or on one data rank; or a plain function of one value."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.dispatch import is_divided
from twinkle_remote.call.send import bound_call, start
from twinkle_remote.context import call_line, ping
from twinkle_remote.errors import CollectError
from twinkle_remote.lazy.lazy import Lazy
from twinkle_remote.lazy.table import rows_of_ranks
from twinkle_remote.protocol.messages import Call, Replicated, component_of
from twinkle_remote.protocol.spec import SPEC, FunctionSpec, by_rank_options, concurrency_of, data_peers
from twinkle_remote.rows.cut import may_have_rows, rows_of, take
from twinkle_remote.sessions.weights import WorkersOf
from twinkle_remote.streams.schedule import StageRule
from twinkle_remote.streams.source import PlacedRows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Component

_ROWS = ("flatten", "first", "none", "last_pp")


@dataclass(frozen=True, slots=True)
class RemoteStage:
    """A bound remote function, or a partial of one, whose calls ahead of the loop go to one data rank each.

    That of a collective function has one data rank, of all its ranks: they divide the rows of each call.

    Attributes:
        function: The function, for calls of the loop.
        call: What each call ahead of the loop has in common, whole on all peers of a data rank, or divided if
            collective. The rows come after its arguments by place.
        peers: The ranks of each data rank.
        collects: The ranks of each data rank whose results are the rows of a call, in order.
        concurrency: Calls on a data rank at a time, of one row each; None for one call of many rows.
    """

    function: Callable[[Any], Any]
    call: Call
    peers: Sequence[tuple[int, ...]]
    collects: Sequence[tuple[int, ...]]
    concurrency: int | None

    @property
    def name(self) -> str:
        """Class.method."""
        return self.call.name

    def workers(self, data_rank: int) -> WorkersOf:
        """The workers of a data rank."""
        return WorkersOf(self.call.component, self.peers[data_rank])

    def begin(self, data_rank: int, rows: Any, label: str) -> PendingCall:
        """Call it on all ranks of a data rank; calls from one process reach all ranks in one order.

        Args:
            data_rank: The data rank.
            rows: The rows.
            label: Which rows these are, for the timeline.
        """
        pending = self._start(data_rank, args=(*self.call.args, rows))
        pending.record.label = label
        return pending

    def ask(self, data_rank: int) -> PendingCall:
        """Call nothing on all ranks of a data rank, to learn whether they are there."""
        return self._start(
            data_rank, kind="function", target=ping, spec=FunctionSpec(dispatch="all"), names=(), args=(), kwargs={}
        )

    def _start(self, data_rank: int, **changes: Any) -> PendingCall:
        part = replace(self.call.component, ranks=self.peers[data_rank])
        return start(replace(self.call, component=part, line=call_line(), **changes), prefetched=True)

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
        return PlacedRows(
            rows_of_ranks(pending, ranks),
            count,
            (self.call.component.group, ranks, [outcome.payload for outcome in outcomes]),
        )


@dataclass(frozen=True, slots=True)
class PlainStage:
    """A function of one value, which runs in this process; `keeps` has it say of each row whether it is kept."""

    function: Callable[[Any], Any]
    name: str
    keeps: bool = False

    def made(self, rows: Any, count: int) -> PlacedRows:
        """The rows that it makes of others; this waits for a lazy result of it.

        Raises:
            CollectError: It did not return a row for each row.
        """
        value = self.function(rows)
        value = value.result() if isinstance(value, Lazy) else value
        check_rows(self.name, rows_of(value, self.name), count)
        return PlacedRows(value, count)

    def refused(self, rows: Any, count: int) -> list[int]:
        """Of one that keeps rows: the places of those that it does not keep. The rows are fetched to this process."""
        value = rows.result() if isinstance(rows, Lazy) else rows
        check_rows(f"the stage before keep={self.name}", rows_of(value, self.name), count)
        each = value if isinstance(value, list) else (take(value, range(row, row + 1)) for row in range(count))
        return [place for place, row in enumerate(each) if not self.function(row)]


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


def stage_of(function: Any, *, ahead: bool) -> Stage:
    """The stage of a function, which may work ahead of the loop.

    Raises:
        TypeError: It is neither a remote function of a component nor callable, or a partial's arguments do not fit it.
        ValueError: A partial's argument would be divided with the rows; or it cannot run for a part of the rows ahead.
    """
    if not callable(function):
        raise TypeError(f"a stage is a remote function of a component, or a function of one value, got {function!r}")
    bound, args, kwargs = function, (), dict[str, Any]()
    while isinstance(bound, functools.partial):
        args, kwargs, bound = (*bound.args, *args), {**bound.keywords, **kwargs}, bound.func
    itself = getattr(bound, "__self__", None)
    component, spec = component_of(itself), getattr(bound, SPEC, None)
    if spec is None or component is None:
        return PlainStage(function, getattr(function, "__qualname__", repr(function)))
    call = bound_call(bound, (*args, None), kwargs, "")
    name, names = call.name, call.names
    _check_fixed(name, spec, dict(zip(names, args, strict=False)) | kwargs, names[len(args)])
    if ahead:
        _check_ahead(name, spec)
    peers, collects = _data_ranks(component, spec)
    call = replace(call, spec=by_rank_options(spec), args=args, own_share=False, reads_ranks=True)
    one_by_one = call.spec.on_loop and not spec.collective
    return RemoteStage(function, call, peers, collects, concurrency_of(type(itself)) if one_by_one else None)


def _check_fixed(name: str, spec: FunctionSpec, fixed: Mapping[str, Any], rows: str) -> None:
    for key, value in fixed.items():
        has_rows = isinstance(value, Lazy) or (not isinstance(value, Replicated) and may_have_rows(value))
        if has_rows and is_divided(spec, key, value) and not callable(spec.dispatch):
            raise ValueError(
                f"{name} divides {key} with {rows}, and as an argument of a stage's functools.partial it is the same "
                "for all rows: pass Replicate(value), or name it in replicate="
            )


def _check_ahead(name: str, spec: FunctionSpec) -> None:
    if callable(spec.dispatch):
        why, instead = "divides its rows by a callable, which needs all ranks of a call", "dispatch='slice_dp'"
    elif spec.sticky is not None:
        why = f"has sticky={spec.sticky!r}, and a stream chooses the data rank of each row by itself"
        instead = "a function without sticky="
    elif spec.collect not in _ROWS:
        why = f"has collect={spec.collect!r} and does not return rows"
        instead = "collect='flatten', 'first' or 'none'"
    else:
        return
    raise ValueError(f"{name} {why}: use ahead=0, or {instead}")


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
    pools: dict[Any, tuple[int, int]] = {}  # number and data ranks
    rules = []
    for stage in stages:
        if isinstance(stage, RemoteStage):
            key: Any = (stage.call.component.group, tuple(stage.peers), stage.call.spec.collective)
            pool, _ = pools.setdefault(key, (len(pools), len(stage.peers)))
            rules.append(StageRule(pool, stage.concurrency or 1, stage.concurrency is None))
        else:
            rules.append(StageRule(pools.setdefault(object(), (len(pools), 1))[0]))
    return [ranks for _, ranks in pools.values()], rules
