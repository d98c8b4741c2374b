"""The controller of a sync: it plans, prepares both sides, and starts one attempt after the other."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from twinkle_ray.weights.checks import check_facts
from twinkle_ray.weights.controller.attempt import Attempt
from twinkle_ray.weights.controller.empty_attempt import EmptyAttempt
from twinkle_ray.weights.controller.in_flight import PublishedVersions
from twinkle_ray.weights.controller.participants import RemoteParticipants
from twinkle_ray.weights.controller.plan_cache import PlanCache
from twinkle_ray.weights.controller.rank_calls import SIDES, RankCalls
from twinkle_ray.weights.controller.steps import run_step
from twinkle_ray.weights.controller.sync_group import SyncGroup
from twinkle_ray.weights.errors import ManifestError, UnsettledWeightsError, WeightSyncError
from twinkle_ray.weights.messages import MemoryFile, Side, SyncCommand
from twinkle_ray.weights.planning.manifest import MatchOptions
from twinkle_ray.weights.rendezvous.session import Phase
from twinkle_ray.weights.worker import endpoint
from twinkle_remote.backends.support import running
from twinkle_remote.protocol import RestartingBackend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.weights.controller.participants import Participants
    from twinkle_ray.weights.controller.steps import StepCall
    from twinkle_ray.weights.delivery import WeightDelivery
    from twinkle_ray.weights.messages import RankReport, RepeatReport
    from twinkle_ray.weights.planning.schedule import Transport
    from twinkle_ray.weights.planning.sync_plan import SyncPlan

_log = logging.getLogger("twinkle.ray")
_NOTICE_SECONDS, _REVIVING_SECONDS = 2.0, 20.0  # a stream that starts workers again may notice late on busy cores
_NAP_SECONDS = 0.02
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
    overwrite_trained: bool = False


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
        self.target = both_sides["target"]
        self._published = PublishedVersions(self.target) if isinstance(self.target, RemoteParticipants) else None
        self._forgotten = False
        self._attempts = 0
        self._checked: str | None = None
        self._latest: Attempt | None = None

    @property
    def sync_plan(self) -> SyncPlan | None:
        """The plan of the latest sync; None before the first, and after a failure."""
        return self._plans.sync_plan

    def begin(
        self, version: int, deadline: float, *, detached: bool, in_flight: bool = False
    ) -> Attempt | EmptyAttempt:
        """Plan, compare the source's replicas where that is due, and send the buckets or pack them.

        Args:
            version: Of the weights after it.
            deadline: On the monotonic clock.
            detached: Return when the buckets are packed.
            in_flight: The target's calls go on; each of its ranks takes the version between two of them.
        """
        self._attempts += 1
        self._choose_ranks(in_flight)
        if not self.target.size:  # nothing is planned against nobody
            if in_flight and self._all_return():
                return EmptyAttempt(SyncCommand(version, self._attempts, "", in_flight=True))
            raise WeightSyncError(f"no rank of {self.target.name}, the target of the weight sync, is alive")
        latest, self._latest = self._latest, None
        reports = None
        if latest is not None and self._may_repeat(latest):
            command = replace(
                latest.command, version=version, attempt=self._attempts, detached=detached, in_flight=in_flight
            )
            repeated = self._repeat(latest, command, deadline)
            if isinstance(repeated, Attempt):
                return repeated
            reports = repeated
        if reports is None:
            reports = self._plans.describe(deadline)
        self._check_target(reports["target"])
        check_facts(self._calls.both_sides["source"].name, self.target.name, reports["source"], reports["target"])
        sync_plan = self._plans.compile(reports)
        self._prepare(sync_plan, reports, deadline)
        command = SyncCommand(
            version=version,
            attempt=self._attempts,
            plan_digest=sync_plan.digest,
            detached=detached,
            checksum=self._options.checksum,
            reversible=self._reversible(sync_plan, reports["target"]),
            in_flight=in_flight,
            occupied=self._occupied(reports["target"]),
        )
        fetched = () if latest is None or latest.sync_plan is not sync_plan else latest.fetched
        attempt = Attempt(self._calls, self._group, sync_plan, command, deadline, fetched)
        check = self._options.check
        compare = check == "always" or (check == "first" and self._checked != sync_plan.digest)
        attempt.transfer(compare=compare, finite=check == "always")
        return attempt

    def _reversible(self, sync_plan: SyncPlan, reports: Sequence[RankReport]) -> bool:
        """Whether ranks of the target can go back: where that is wanted, and where it costs nothing."""
        wanted = self._options.keep_old or any(report.goes_back for report in reports)
        return wanted and len(sync_plan.processes) > 1

    def _may_repeat(self, latest: Attempt) -> bool:
        """Whether a sync may begin as the latest one, which has worked.

        Not where ranks wait for each other before they transfer, because one that has changed would not come; nor where
        the memory of the target is replaced, because only the target knows in which memory it lives.
        """
        plan = latest.sync_plan
        replaced = any(report.occupied is not None for report in plan.reports["target"])
        return self._options.check != "always" and not plan.links and not replaced

    def _repeat(self, latest: Attempt, command: SyncCommand, deadline: float) -> Attempt | dict[Side, list[RankReport]]:
        """Describe and transfer in one step; returns the reports alone where a rank has changed."""
        calls = {
            side: self._calls.call(side, endpoint.repeat, self._calls.same(side, command), *self._plans.known(side))
            for side in SIDES
        }
        watched = self._group.watched(latest.sync_plan, command.phase("repeat"), SIDES, once_begun=True)
        found: dict[Side, list[RepeatReport]] = run_step("repeat", self._calls.both_sides, calls, deadline, watched)
        reports = {side: [one.report for one in of_side] for side, of_side in found.items()}
        self._plans.take(reports)
        transferred = {side: [one.transferred for one in of_side] for side, of_side in found.items()}
        if not all(one is not None for of_side in transferred.values() for one in of_side):
            return reports
        sources = [one for one in transferred["source"] if one is not None]
        return Attempt(self._calls, self._group, latest.sync_plan, command, deadline, latest.fetched, sources)

    def _check_target(self, reports: Sequence[RankReport]) -> None:
        """Refuse to write weights that the target trains, unless that is wanted.

        Raises:
            ManifestError: It trains them.
        """
        trained = {rank: report.trained for rank, report in enumerate(reports) if report.trained}
        if trained and not self._options.overwrite_trained:
            rank, why = next(iter(trained.items()))
            raise ManifestError(
                f"{self.target.name}, the target of the weight sync, trains its weights, and a sync would overwrite "
                f"them: on rank {rank} {why}; is WeightSync(source, target) called with the two exchanged? "
                "overwrite_trained=True writes them all the same"
            )

    def commit(self, attempt: Attempt | EmptyAttempt) -> WeightDelivery:
        """Wait until all has arrived, and write it, or hold it in flight, on every rank of the target, or on none."""
        held = attempt.command.in_flight
        delivery = attempt.hold(self._versions().superseded()) if held else attempt.commit()
        if isinstance(attempt, Attempt) and attempt.compares:
            self._checked = attempt.sync_plan.digest
        return delivery

    def publish(self, attempt: Attempt | EmptyAttempt) -> None:
        """In flight, have every rank of the target take what it holds after the calls that it has; returns at once."""
        if attempt.command.in_flight:
            self._versions().publish(self._calls, attempt.command)

    def abandon(self, attempt: Attempt | EmptyAttempt) -> None:
        """Have every rank of the target forget what it holds of an attempt that is not published."""
        attempt.let_go()
        self.forget()

    def finalize(self, attempt: Attempt | EmptyAttempt) -> None:
        """Make a commit final on every rank, and call the target's `on_weights`; the log names ranks that have died."""
        if attempt.command.in_flight:
            attempt.finalize_source()
        elif not attempt.finalize():
            self.forget()
            return
        if isinstance(attempt, Attempt):
            self._latest = attempt

    def can_continue_without(self) -> bool:
        """Whether a rank of the target was lost since the sync began, and others are left, or have come."""
        target = self.target
        if not isinstance(target, RemoteParticipants) or not target.concurrent:
            return False
        before = set(target.living)
        target.look_who_lives()
        lost = before & target.lost | before - set(target.living)  # one that is back already has lost its state
        return bool(lost) and (target.size > 0 or self._all_return())

    def _all_return(self) -> bool:
        """Whether all ranks of the target are lost and are started again, or will be when a stream has noticed it."""
        target = self.target
        if not isinstance(target, RemoteParticipants) or target.size:
            return False
        backend = running().backend
        may_return = isinstance(backend, RestartingBackend) and backend.can_restart
        until = time.monotonic() + (_REVIVING_SECONDS if may_return else _NOTICE_SECONDS)
        while not target.left_out and time.monotonic() < until:
            time.sleep(_NAP_SECONDS)  # until the stream that works with them has noticed it
        return bool(target.left_out)

    def _choose_ranks(self, in_flight: bool) -> None:
        """In flight, leave out those ranks of the target whose workers have ended."""
        target = self.target
        if not isinstance(target, RemoteParticipants) or target.chosen:
            return
        target.concurrent, target.lost = in_flight, frozenset()
        everyone = target.everyone()
        if in_flight:
            self._versions().check()
            whole = list(target.living) == list(everyone)
            if (self._forgotten or not whole) and target.look_who_lives(lost_only=not self._forgotten):
                self.forget()
        elif list(target.living) != list(everyone):
            target.keep(everyone)
            self.forget()
        self._forgotten = False

    def _occupied(self, reports: Sequence[RankReport]) -> frozenset[MemoryFile] | None:
        """The memory files in which tensors of the target live; None where a rank that takes no part may have some."""
        occupied = [report.occupied for report in reports if report.occupied is not None]
        target = self.target
        if occupied and isinstance(target, RemoteParticipants) and len(target.living) < len(target.ranks):
            return None
        return frozenset[MemoryFile]().union(*occupied)

    def _versions(self) -> PublishedVersions:
        assert self._published is not None, "only a component takes versions in flight"
        return self._published

    def forget(self) -> None:
        """End the group's session; the next sync plans anew."""
        self._forgotten = True
        self._latest = None
        self._group.end()
        self._plans.clear()
        self._checked = None

    def waits_for(self, seconds: float) -> str:
        """The ranks that a step waits for, with their stacks."""
        sides = [side for side in self._calls.both_sides.values() if isinstance(side, RemoteParticipants)]
        return "\n".join(line for side in sides for line in side.lateness(seconds))

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


def donate(source: Participants, target: Participants, version: int, options: SyncOptions) -> None:
    """Write the weights of some ranks into others, between two calls of the donors.

    Args:
        source: The ranks of one replica.
        target: Ranks that run nothing else.
        version: For `on_weights`.
        options: Of the syncs into this component.

    Raises:
        WeightSyncError: It failed.
    """
    match = MatchOptions(None, options.match_options.select, False)
    strict = replace(options, check="never", keep_old=True, match_options=match)  # a death in the write fails it
    controller = Controller({"source": source, "target": target}, strict)
    deadline = time.monotonic() + options.timeout
    try:
        attempt = controller.begin(version, deadline, detached=False)
        controller.commit(attempt)
        controller.finalize(attempt)
    finally:
        controller.close(deadline)


def donated(source: Participants, target: Participants, version: int, options: SyncOptions) -> bool:
    """Do as `donate`; False where the source holds values of a failed sync, which it never took.

    Raises:
        WeightSyncError: It failed in another way.
    """
    try:
        donate(source, target, version, options)
    except WeightSyncError as error:
        if not isinstance(error.__cause__, UnsettledWeightsError):
            raise
        _log.warning("%s; all ranks get a new version", error)
        return False
    return True
