"""The controller of a sync: it plans, prepares both sides, and starts one attempt after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from twinkle_ray.weights.controller.attempt import Attempt
from twinkle_ray.weights.controller.plan_cache import PlanCache
from twinkle_ray.weights.controller.rank_calls import SIDES, RankCalls
from twinkle_ray.weights.controller.steps import run_step
from twinkle_ray.weights.controller.sync_group import SyncGroup
from twinkle_ray.weights.messages import Side, SyncCommand
from twinkle_ray.weights.rendezvous.session import Phase
from twinkle_ray.weights.worker import endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.weights.controller.participants import Participants
    from twinkle_ray.weights.controller.steps import StepCall
    from twinkle_ray.weights.delivery import WeightDelivery
    from twinkle_ray.weights.messages import RankReport
    from twinkle_ray.weights.planning.manifest import MatchOptions
    from twinkle_ray.weights.planning.routes import Transport
    from twinkle_ray.weights.planning.sync_plan import SyncPlan

Check: TypeAlias = Literal["first", "always", "never"]


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """The options of a sync, as `WeightSync` documents them."""

    bucket_bytes: int
    timeout: float
    match_options: MatchOptions
    check: Check
    checksum: bool
    keep_old: bool
    transport: Transport
    silence: float


class Controller:
    """Runs syncs between two components, one at a time; its caller calls `forget` after an error.

    Args:
        both_sides: The participants of each side.
        options: For every sync.
    """

    def __init__(self, both_sides: Mapping[Side, Participants], options: SyncOptions) -> None:
        self._options = options
        self._calls = RankCalls(both_sides)
        self._plans = PlanCache(self._calls, options.match_options, options.bucket_bytes, options.transport)
        self._group = SyncGroup(self._calls, options.timeout, options.silence)
        self._attempts = 0
        self._checked: str | None = None

    @property
    def sync_plan(self) -> SyncPlan | None:
        """The plan of the latest sync; None before the first, and after a failure."""
        return self._plans.sync_plan

    def begin(self, version: int, deadline: float, *, detached: bool) -> Attempt:
        """Plan, compare the source's replicas where that is due, and send the buckets or pack them."""
        self._attempts += 1
        reports = self._plans.describe(deadline)
        sync_plan = self._plans.compile(reports)
        self._prepare(sync_plan, reports, deadline)
        command = SyncCommand(
            version=version,
            attempt=self._attempts,
            plan_digest=sync_plan.digest,
            detached=detached,
            checksum=self._options.checksum,
            reversible=self._options.keep_old and len(sync_plan.processes) > 1,
        )
        attempt = Attempt(self._calls, self._group, sync_plan, command, deadline)
        check = self._options.check
        attempt.transfer(compare=check == "always" or (check == "first" and self._checked != sync_plan.digest))
        return attempt

    def commit(self, attempt: Attempt) -> WeightDelivery:
        """Wait until everything has arrived, and write it on every rank of the target, or on none."""
        delivery = attempt.commit()
        if attempt.compares:
            self._checked = attempt.sync_plan.digest
        return delivery

    def finalize(self, attempt: Attempt) -> None:
        """Make a commit final on every rank, and call the target's `on_weights`; the log names ranks that have died."""
        if not attempt.finalize():
            self.forget()

    def forget(self) -> None:
        """End the group's session; the next sync plans anew."""
        self._group.end()
        self._plans.clear()
        self._checked = None

    def close(self, deadline: float) -> None:
        """Have every worker give back what it keeps for this sync."""
        calls = {side: self._calls.call(side, endpoint.close) for side in SIDES}
        try:
            run_step("close", self._calls.both_sides, calls, deadline)
        finally:
            self.forget()
            self._group.close()

    def _prepare(self, sync_plan: SyncPlan, reports: Mapping[Side, Sequence[RankReport]], deadline: float) -> None:
        """Send each rank its plan where it lacks it, and build a new group where the old one does not fit."""
        everyone = [report for side in SIDES for report in reports[side]]
        joining = None
        if len(sync_plan.processes) > 1 and not self._group.fits(sync_plan, everyone):
            joining = self._group.open(sync_plan, everyone, deadline)
        if joining is None and all(report.prepared == sync_plan.digest for report in everyone):
            return
        calls: dict[Side, StepCall] = {}
        for side in SIDES:
            rank_plans = [
                sync_plan.rank_plan(side, rank) if report.prepared != sync_plan.digest else None
                for rank, report in enumerate(reports[side])
            ]
            calls[side] = self._calls.call(side, endpoint.prepare, rank_plans, self._calls.same(side, joining))
        watched = None if joining is None else self._group.watched(sync_plan, Phase(0, "join"), SIDES)
        run_step("prepare", self._calls.both_sides, calls, deadline, watched)
