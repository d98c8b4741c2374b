"""The steps of a sync, in order, from what both sides hold to a version that is in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import uuid4

from twinkle_ray.weights.controller.steps import Ask, death_behind, run_last_step, run_step, run_where_alive
from twinkle_ray.weights.controller.sync_group import SyncGroup
from twinkle_ray.weights.delivery import WeightDelivery, by_name, changed_names, check_arrival, check_replicas
from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.messages import RankAddress, RankReport, Side, StepResult, SyncCommand
from twinkle_ray.weights.planning.sync_plan import SyncPlan, compile_plan
from twinkle_ray.weights.rendezvous.session import Phase
from twinkle_ray.weights.shards.specs import RankSpecs, digest
from twinkle_ray.weights.worker import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_ray.weights.controller.participants import Participants
    from twinkle_ray.weights.planning.manifest import MatchOptions
    from twinkle_ray.weights.planning.routes import Transport
    from twinkle_ray.weights.planning.transfer_plan import Digests

SIDES: tuple[Side, Side] = ("source", "target")
Check: TypeAlias = Literal["first", "always", "never"]


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """What a sync was asked for, as `WeightSync` says."""

    bucket_bytes: int
    timeout: float
    terms: MatchOptions
    check: Check
    checksum: bool
    keep_old: bool
    transport: Transport
    silence: float


@dataclass(frozen=True, slots=True)
class StartedSync:
    """A sync whose buckets are packed.

    Attributes:
        blueprint: What it follows.
        order: What the ranks were told.
        deadline: On the monotonic clock.
        sources: What the source's ranks have done.
        sent: Digests of the source's blocks, by rank; None where they are not compared.
    """

    blueprint: SyncPlan
    order: SyncCommand
    deadline: float
    sources: Sequence[StepResult]
    sent: Sequence[Digests] | None


class Controller:
    """Runs syncs between two components, one at a time; an error inside leaves it to be forgotten by its caller.

    Args:
        crews: Both sides.
        options: For every sync.
    """

    def __init__(self, crews: Mapping[Side, Participants], options: SyncOptions) -> None:
        self._crews, self._options = crews, options
        self._id = uuid4().hex
        self._attempt = 0
        self._sheets: dict[tuple[Side, int], tuple[str, RankSpecs]] = {}
        self._drawn: tuple[str, SyncPlan] | None = None
        self._checked: str | None = None
        self._group = SyncGroup(crews, options.timeout, options.silence)

    @property
    def blueprint(self) -> SyncPlan | None:
        """What the latest sync followed; None before the first, and after a failure."""
        return None if self._drawn is None else self._drawn[1]

    def begin(self, version: int, deadline: float, *, detached: bool) -> StartedSync:
        """TransferPlan, compare the source's replicas where that is due, and send or pack."""
        self._attempt += 1
        reports = self._survey(deadline)
        blueprint = self._blueprint(reports)
        self._prepare(blueprint, reports, deadline)
        order = SyncCommand(
            version=version,
            attempt=self._attempt,
            program=blueprint.digest,
            detached=detached,
            checksum=self._options.checksum,
            reversible=self._options.keep_old and len(blueprint.processes) > 1,
        )
        sent: Sequence[Digests] | None = None
        if self._options.check == "always" or (self._options.check == "first" and self._checked != blueprint.digest):
            sent = self._digests("digest", "source", order, deadline)
            check_replicas(blueprint.plan, sent)
        begun = self._step("transfer", SIDES, order, deadline, endpoint.transfer)
        return StartedSync(blueprint, order, deadline, begun["source"], sent)

    def commit(self, begun: StartedSync) -> WeightDelivery:
        """Wait until everything has arrived, and write it on every rank of the target, or on none."""
        blueprint, order, deadline = begun.blueprint, begun.order, begun.deadline
        self._collect(begun)
        try:
            bits = self._step("commit", ("target",), order, deadline, endpoint.commit)["target"]
            received = self._received(begun)
        except WeightSyncError:
            if order.reversible:
                asks = self._ask("target", endpoint.rollback, [order] * self._crews["target"].size)
                run_where_alive("rollback", self._crews["target"], asks)
            raise
        changed = 0
        for of_rank in bits:
            changed |= of_rank
        sent, plan = begun.sent, blueprint.plan
        return WeightDelivery(
            order.version,
            changed_names(plan, changed),
            {} if sent is None else by_name(plan, sent),
            {} if received is None else by_name(plan, received),
        )

    def settle(self, begun: StartedSync) -> None:
        """Make a commit final on every rank, and call the target's `on_weights`; what has died meanwhile is logged."""
        order = begun.order
        asks = {side: self._ask(side, endpoint.finalize, [order] * self._crews[side].size) for side in SIDES}
        watched = self._group.watched(begun.blueprint, order.phase("finalize"), ("target",))
        placed = f"version {order.version} of the weights is in place"
        if not run_last_step("finalize", self._crews, asks, begun.deadline, watched, placed):
            self.forget()

    def forget(self) -> None:
        """End the group's session, and survey everything anew next time."""
        self._group.end()
        self._drawn = self._checked = None
        self._sheets.clear()

    def close(self, deadline: float) -> None:
        """Have every worker give back what it keeps for this sync."""
        asks = {side: self._ask(side, endpoint.close) for side in SIDES}
        try:
            run_step("close", self._crews, asks, deadline)
        finally:
            self.forget()
            self._group.close()

    def _survey(self, deadline: float) -> dict[Side, list[RankReport]]:
        asks = {
            side: self._ask(
                side, endpoint.describe, [self._sheets.get((side, r), (None,))[0] for r in range(crew.size)]
            )
            for side, crew in self._crews.items()
        }
        reports: dict[Side, list[RankReport]] = run_step("describe", self._crews, asks, deadline)
        for side, of_side in reports.items():
            for rank, report in enumerate(of_side):
                if report.sheet is not None:
                    self._sheets[side, rank] = (report.digest, report.sheet)
        return reports

    def _blueprint(self, reports: Mapping[Side, Sequence[RankReport]]) -> SyncPlan:
        """What follows from what both sides hold now; drawn again only when that has changed."""
        key = digest([(side, r.process, r.host, r.device, r.digest) for side in SIDES for r in reports[side]])
        if self._drawn is None or self._drawn[0] != key:
            sheets: dict[Side, list[RankSpecs]] = {
                side: [self._sheets[side, rank][1] for rank in range(crew.size)] for side, crew in self._crews.items()
            }
            options = self._options
            drawn = compile_plan(sheets, reports, options.terms, options.bucket_bytes, options.transport)
            self._drawn = (key, drawn)
        return self._drawn[1]

    def _prepare(self, blueprint: SyncPlan, reports: Mapping[Side, Sequence[RankReport]], deadline: float) -> None:
        """Send new programs to those that lack them, and build a new group where the old one does not fit."""
        everyone = [report for side in SIDES for report in reports[side]]
        joining = None
        if len(blueprint.processes) > 1 and not self._group.fits(blueprint, everyone):
            joining = self._group.open(blueprint, everyone, self._places("source"), deadline)
        if joining is None and all(report.prepared == blueprint.digest for report in everyone):
            return
        asks: dict[Side, Ask] = {}
        for side in SIDES:
            programs = [
                blueprint.program(side, rank) if report.prepared != blueprint.digest else None
                for rank, report in enumerate(reports[side])
            ]
            asks[side] = self._ask(side, endpoint.prepare, programs, [joining] * len(programs))
        watched = None if joining is None else self._group.watched(blueprint, Phase(0, "join"), SIDES)
        run_step("prepare", self._crews, asks, deadline, watched)

    def _collect(self, begun: StartedSync) -> None:
        """Wait for what a detached sync left to the background, and take what sources left in depots."""
        blueprint, order, deadline, sources = begun.blueprint, begun.order, begun.deadline, begun.sources
        if order.detached:
            sources = self._step("wait_transfer", SIDES, order, deadline, endpoint.wait_transfer)["source"]
        if not (blueprint.depots or order.checksum):
            return
        handles = {index: handle for outcome in sources for index, handle in outcome.handles.items()}
        wanted = [
            {
                bucket.index: handles[bucket.index]
                for bucket in blueprint.buckets
                if rank in bucket.targets and bucket.index in handles
            }
            for rank in range(self._crews["target"].size)
        ]
        try:
            collected = self._step("fetch", ("target",), order, deadline, endpoint.fetch, wanted)["target"]
        except WeightSyncError as error:
            raise death_behind("fetch", error, self._crews["source"], self._ask("source", endpoint.answer)) from error
        if order.checksum:
            _compare(sources, collected)

    def _received(self, begun: StartedSync) -> Sequence[Digests] | None:
        """Digests of what is in the target's tensors now, where the source's are there to compare them with."""
        if begun.sent is None:
            return None
        received = self._digests("verify", "target", begun.order, begun.deadline)
        check_arrival(begun.blueprint.plan, begun.sent, received)
        self._checked = begun.blueprint.digest
        return received

    def _digests(self, step: str, side: Side, order: SyncCommand, deadline: float) -> list[Digests]:
        names = [step] * self._crews[side].size
        return self._step(step, (side,), order, deadline, endpoint.digest, names)[side]

    def _step(
        self,
        name: str,
        sides: Sequence[Side],
        order: SyncCommand,
        deadline: float,
        function: Callable[..., object],
        *columns: Sequence[object],
    ) -> dict[Side, list[Any]]:
        asks = {side: self._ask(side, function, [order] * self._crews[side].size, *columns) for side in sides}
        assert self._drawn is not None
        watched = self._group.watched(self._drawn[1], order.phase(name), sides)
        return run_step(name, self._crews, asks, deadline, watched)

    def _ask(self, side: Side, function: Callable[..., object], *columns: Sequence[object]) -> Ask:
        """A function, and each rank's arguments: its place, then its row of the columns."""
        return function, list(zip(self._places(side), *columns, strict=True))

    def _places(self, side: Side) -> list[RankAddress]:
        return [RankAddress(self._id, side, rank) for rank in range(self._crews[side].size)]


def _compare(sent: Sequence[StepResult], received: Sequence[StepResult]) -> None:
    at_source = {index: value for outcome in sent for index, value in outcome.checksums.items()}
    for rank, outcome in enumerate(received):
        wrong = [index for index, value in outcome.checksums.items() if at_source.get(index) != value]
        if wrong:
            raise WeightSyncError(
                f"bucket(s) {wrong} reached target rank {rank} with other bytes than it was sent; nothing is written"
            )
