"""The plan of a sync, kept for as long as both sides hold the same shards in the same places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_ray.weights.controller.participants import RemoteParticipants
from twinkle_ray.weights.controller.rank_calls import SIDES, RankCalls
from twinkle_ray.weights.controller.steps import run_step
from twinkle_ray.weights.planning.sync_plan import SyncPlan, compile_plan
from twinkle_ray.weights.shards.specs import RankSpecs, digest
from twinkle_ray.weights.worker import endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.weights.messages import RankReport, Side
    from twinkle_ray.weights.planning.manifest import MatchOptions
    from twinkle_ray.weights.planning.schedule import Transport


class PlanCache:
    """Reads what the ranks hold, and compiles a plan when that has changed.

    Args:
        calls: To the ranks.
        match_options: Renaming, subset and conversion.
        bucket_bytes: Size of a bucket.
        transport: As the user asked for it.
    """

    def __init__(self, calls: RankCalls, match_options: MatchOptions, bucket_bytes: int, transport: Transport) -> None:
        self._calls, self._match_options = calls, match_options
        self._bucket_bytes, self._transport = bucket_bytes, transport
        self._known_specs: dict[tuple[Side, int], tuple[str, RankSpecs]] = {}
        self._compiled: tuple[str, SyncPlan] | None = None

    @property
    def sync_plan(self) -> SyncPlan | None:
        """The latest plan; None before the first, and after `clear`."""
        return None if self._compiled is None else self._compiled[1]

    def describe(self, deadline: float) -> dict[Side, list[RankReport]]:
        """Every rank's report; specs travel only where they have changed."""
        calls = {side: self._calls.call(side, endpoint.describe, *self.known(side)) for side in SIDES}
        reports: dict[Side, list[RankReport]] = run_step("describe", self._calls.both_sides, calls, deadline)
        self.take(reports)
        return reports

    def known(self, side: Side) -> tuple[Sequence[object], Sequence[object]]:
        """For each rank of a side, the digest of its known specs, and whether its component works meanwhile."""
        ranks = self._calls.both_sides[side]
        digests = [self._known_digest(side, rank) for rank in range(ranks.size)]
        return digests, self._calls.same(side, isinstance(ranks, RemoteParticipants) and ranks.concurrent)

    def take(self, reports: Mapping[Side, Sequence[RankReport]]) -> None:
        """Keep the specs that came with reports."""
        for side, of_side in reports.items():
            for rank, report in enumerate(of_side):
                if report.rank_specs is not None:
                    self._known_specs[side, rank] = (report.digest, report.rank_specs)

    def compile(self, reports: Mapping[Side, Sequence[RankReport]]) -> SyncPlan:
        """The plan for these reports; compiled again only when shards, devices or processes have changed."""
        key = digest([(side, r.process, r.host, r.device, r.digest) for side in SIDES for r in reports[side]])
        if self._compiled is None or self._compiled[0] != key:
            all_specs: dict[Side, list[RankSpecs]] = {
                side: [self._known_specs[side, rank][1] for rank in range(len(of_side))]
                for side, of_side in reports.items()
            }
            compiled = compile_plan(all_specs, reports, self._match_options, self._bucket_bytes, self._transport)
            self._compiled = (key, compiled)
        return self._compiled[1]

    def clear(self) -> None:
        """Forget the specs and the plan."""
        self._compiled = None
        self._known_specs.clear()

    def _known_digest(self, side: Side, rank: int) -> str | None:
        known = self._known_specs.get((side, rank))
        return None if known is None else known[0]
