"""A stage: a remote function, called whole or on one data rank; or a plain function of one value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.start import start
from twinkle_remote.component.method import bind
from twinkle_remote.failures.frames import call_line
from twinkle_remote.protocol.call import Call
from twinkle_remote.protocol.component import component_of, same_component
from twinkle_remote.protocol.marks import SPEC, concurrency_of
from twinkle_remote.protocol.spec import FunctionSpec, by_rank_options
from twinkle_remote.protocol.targets import bound_target
from twinkle_remote.sessions.weight_sources import WorkersOf
from twinkle_remote.streams.fixed_arguments import without_partials
from twinkle_remote.streams.schedule.intake import Intake
from twinkle_remote.worker.ping import ping

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.streams.fixed_arguments import FixedArguments

_WHOLE = FunctionSpec(dispatch="all")
_ROWS = ("flatten", "first", "none", "last_pp")


@dataclass(frozen=True, slots=True)
class RemoteStage:
    """A bound remote function, or a partial of one, whose chunks go to one data rank each.

    That of a collective function has one data rank for each component, of all its ranks: they divide each chunk.

    Attributes:
        function: The bound function.
        component: Its component, the first one.
        spec: Its options, as each chunk is called with: whole on all peers of a data rank, or divided if collective.
        names: Names of its arguments by place, the rows last.
        peers: The ranks of each data rank.
        collects: The ranks of each data rank whose results are the rows of a chunk, in order.
        name: Class.method.
        components: The component of each data rank: others may join.
        fixed: Its arguments besides the rows.
    """

    function: Callable[..., Any]
    component: Component
    spec: FunctionSpec
    names: Sequence[str]
    peers: list[tuple[int, ...]]
    collects: list[tuple[int, ...]]
    name: str
    components: list[Component]
    fixed: FixedArguments

    def run(self, rows: Any) -> Any:
        """Call it whole, for a batch."""
        return self.function(*self.fixed.args, rows, **self.fixed.kwargs)

    def join(self, other: RemoteStage) -> range:
        """Have the data ranks of another component work too; returns which data ranks these are."""
        first = len(self.peers)
        self.peers.extend(other.peers)
        self.collects.extend(other.collects)
        self.components.extend(other.components)
        return range(first, len(self.peers))

    def data_ranks_of(self, component: Component) -> Sequence[int]:
        """The data ranks of a component."""
        return [rank for rank, own in enumerate(self.components) if same_component(own, component)]

    def workers(self, data_rank: int) -> WorkersOf:
        """The workers of a data rank."""
        return WorkersOf(self.components[data_rank], self.peers[data_rank])

    @property
    def data_ranks(self) -> int:
        """Number of data ranks."""
        return len(self.peers)

    def begin(self, data_rank: int, rows: Any, label: str = "") -> PendingCall:
        """Call it for a chunk, on all ranks of a data rank; calls from one process reach all ranks in one order.

        Args:
            data_rank: The data rank.
            rows: The rows.
            label: Which rows these are, for the timeline.
        """
        pending = _ahead(self._call(data_rank, rows))
        pending.record.label = label
        return pending

    def columns_added(self, rows: Any) -> tuple[Hashable, ...] | None:
        """The columns that a call adds to rows, and that its workers keep alone; None if they keep whole rows."""
        if self.spec.adds is None:
            return None
        from twinkle_remote.call.column_rules import columns_added  # few functions add columns

        return columns_added(self._call(0, rows))

    def _call(self, data_rank: int, rows: Any) -> Call:
        part = replace(self.components[data_rank], ranks=self.peers[data_rank])
        target, args = bound_target(self.function), (*self.fixed.args, rows)
        kwargs = dict(self.fixed.kwargs)
        return Call(
            "method", part, target, self.name, self.spec, call_line(), self.names, args, kwargs, reads_ranks=True
        )

    def on_one(self, data_rank: int, function: Callable[..., Any], *arguments: Any) -> PendingCall:
        """Call a function of the object and arguments on the first rank of a data rank whose result counts."""
        part = replace(self.components[data_rank], ranks=self.collects[data_rank][:1])
        names = [f"args[{place}]" for place in range(len(arguments))]
        return _ahead(Call("function", part, function, self.name, _WHOLE, call_line(), names, arguments))

    def ask(self, data_rank: int) -> PendingCall:
        """Call nothing on all ranks of a data rank, to learn whether they are there."""
        part = replace(self.components[data_rank], ranks=self.peers[data_rank])
        return _ahead(Call("function", part, ping, self.name, _WHOLE, call_line(), reads_ranks=True))


def _ahead(call: Call) -> PendingCall:
    """Send a call ahead of the loop."""
    return start(call, prefetched=True)


@dataclass(frozen=True, slots=True)
class PlainStage:
    """A function of one value, which runs in this process.

    Attributes:
        function: The function.
        name: Its name.
    """

    function: Callable[[Any], Any]
    name: str

    def run(self, rows: Any) -> Any:
        """Call it for a batch."""
        return self.function(rows)

    @property
    def data_ranks(self) -> int:
        """It has one."""
        return 1


Stage = RemoteStage | PlainStage


def stage_of(function: Any) -> Stage:
    """The stage of a function.

    Raises:
        TypeError: It is neither a remote function of a component nor callable, or a partial's arguments do not fit it.
        ValueError: A partial's argument would be divided with the rows.
    """
    if not callable(function):
        raise TypeError(f"a stage is a remote function of a component, or a function of one value, got {function!r}")
    whole = function
    function, fixed = without_partials(function)
    component = component_of(getattr(function, "__self__", None))
    spec = getattr(function, SPEC, None)
    if spec is None or component is None:
        return PlainStage(whole, getattr(whole, "__qualname__", repr(whole)))
    name = f"{component.name}.{bound_target(function)}"
    if spec.yields:
        raise TypeError(f"{name} yields items, and a stage returns one row for each row: return a list")
    names = bind(function, component.name, (*fixed.args, None), fixed.kwargs)
    fixed.check(name, spec, names)
    peers, collects = _data_ranks(component, spec)
    asked = by_rank_options(spec)
    return RemoteStage(function, component, asked, names, peers, collects, name, [component] * len(peers), fixed)


def check_chunks(stage: Stage) -> None:
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
    if spec.collect not in _ROWS or spec.columns:
        raise ValueError(
            f"{stage.name} has collect={spec.collect!r} and does not return rows: a stage with ahead=n has "
            "collect='flatten', 'first' or 'none', and returns no tuple of columns"
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
    if spec.dispatch != "slice_dp" or mesh is None or not whole:
        alone: _Ranks = [(rank,) for rank in ranks]
        return ([ranks], [ranks]) if spec.collective else (alone, list(alone))
    if spec.collective:
        return [ranks], [tuple(mesh.collect_ranks)]
    peers: list[list[int]] = [[] for _ in range(mesh.data_world_size)]
    for rank in ranks:
        peers[mesh.data_rank(rank)].append(rank)
    return list(map(tuple, peers)), [(rank,) for rank in mesh.collect_ranks]


def intakes_of(stages: Sequence[Stage], of_stage: Sequence[int], at_once: int | None) -> list[Intake]:
    """The intake of each stage: what it takes at a time.

    Collective calls run one after the other. A worker runs its other `def` calls one after the other too, and the
    `async def` ones of a component next to these, as many at once as its class says; such a call takes one row, because
    a row should not wait for other rows of its call.

    Args:
        stages: The stages.
        of_stage: The pool of each.
        at_once: Calls of all stages of a pool on each data rank at a time; None for what its worker runs.
    """
    lanes: dict[int, list[object]] = {}
    return [
        _intake(stage, lanes.setdefault(pool, [None]), at_once) for stage, pool in zip(stages, of_stage, strict=True)
    ]


def _intake(stage: Stage, lanes: list[object], at_once: int | None) -> Intake:
    if not isinstance(stage, RemoteStage):
        return Intake(calls=at_once or 1)
    if stage.spec.collective:
        return Intake()
    if at_once is not None or not stage.spec.on_loop:
        return Intake(calls=at_once or 1, is_shared_out=not stage.spec.on_loop)
    key = stage.component.instance
    if key not in lanes:
        lanes.append(key)
    calls = concurrency_of(type(getattr(stage.function, "__self__", None)))
    return Intake(lanes.index(key), calls, is_shared_out=False)


def pools_of(stages: Sequence[Stage]) -> tuple[list[int], list[int]]:
    """Number of data ranks of each pool of workers, and the pool of each stage."""
    pools: list[int] = []
    known: dict[Any, int] = {}
    of_stage = []
    for stage in stages:
        key: Any = object()
        if isinstance(stage, RemoteStage):
            key = (stage.component.group, tuple(stage.peers), stage.spec.collective)
        if key not in known:
            known[key] = len(pools)
            pools.append(stage.data_ranks)
        of_stage.append(known[key])
    return pools, of_stage
