"""The plan of a sync: transfers, buckets, routes and rounds, from both sides' reports, and each rank's part of it."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from twinkle_ray.weights.planning.box_plan import BoxPlan, Location, Move, make_plan
from twinkle_ray.weights.planning.buckets import Bucket, make_buckets
from twinkle_ray.weights.planning.schedule import Hop, Transport, choose_route, link_kind, make_rounds
from twinkle_ray.weights.shards.specs import RankSpecs, digest
from twinkle_remote.backends.support import collector_paused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.weights.messages import RankReport, Route, Side
    from twinkle_ray.weights.planning.box_plan import Move
    from twinkle_ray.weights.planning.buckets import Bucket
    from twinkle_ray.weights.planning.manifest import MatchOptions, TensorMatch
    from twinkle_ray.weights.planning.schedule import Hop


@dataclass(frozen=True, slots=True)
class RankPlan:
    """A rank's part of a plan.

    Attributes:
        digest: Of the whole plan with its routes.
        specs_digest: Of the rank's specs that the plan was made for.
        entries: The plan's entries.
        buckets: Those that this rank sends or receives, by index.
        routes: How each of them travels.
        rounds: The hops of this rank's process, for each round that has any.
        process: Rank of its process in the link's group.
        lead: Whether this rank runs the hops of its process; one rank of each process does.
        device: Where buckets of links are staged: "cpu", or the rank's own device.
        replicas: Blocks that this source rank and others hold.
    """

    digest: str
    specs_digest: str
    entries: tuple[TensorMatch, ...]
    buckets: Mapping[int, Bucket]
    routes: Mapping[int, Route]
    rounds: tuple[tuple[Hop, ...], ...]
    process: int
    lead: bool
    device: Literal["cpu", "own"]
    replicas: tuple[Move, ...] = ()


_WIDE = 10_000  # tensors of all ranks; for fewer a pause takes longer than it saves where a program has frozen objects


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Everything that follows from both sides' shards and from where their ranks run.

    Attributes:
        digest: Equal for equal plans.
        plan: The blocks, with their senders and receivers.
        buckets: The plan's blocks, packed.
        routes: How each bucket travels.
        rounds: The hops of the buckets that travel over links, in order.
        processes: Every process once, sources first; a process's index is its rank in the link's group.
        kind: "gloo" or "nccl".
        replicas: For each source rank, the blocks that it and other ranks hold.
        buckets_of: For each rank, the buckets that it sends or receives.
        rounds_of: For each process, its hops in each round that has any.
        reports: The reports that the plan was made from.
    """

    digest: str
    plan: BoxPlan
    buckets: tuple[Bucket, ...]
    routes: tuple[Route, ...]
    rounds: tuple[tuple[Hop, ...], ...]
    processes: tuple[str, ...]
    kind: str
    replicas: Mapping[int, tuple[Move, ...]] = field(repr=False)
    buckets_of: Mapping[tuple[Side, int], Sequence[Bucket]] = field(repr=False)
    rounds_of: Mapping[int, Sequence[tuple[Hop, ...]]] = field(repr=False)
    reports: Mapping[Side, Sequence[RankReport]] = field(repr=False)

    @property
    def links(self) -> bool:
        """Whether any bucket travels over a link."""
        return bool(self.rounds)

    @property
    def uses_block_stores(self) -> bool:
        """Whether any bucket travels through a block store."""
        return any(route != "link" for route in self.routes)

    def processes_of(self, sides: Sequence[Side]) -> list[int]:
        """The processes of some sides."""
        return sorted({self.processes.index(report.process) for side in sides for report in self.reports[side]})

    def who(self, process: int) -> str:
        """A process for messages: its ranks, its host and its pid."""
        names = [
            f"{side} rank {rank} (host {report.node}, pid {report.pid})"
            for side, of_side in self.reports.items()
            for rank, report in enumerate(of_side)
            if report.process == self.processes[process]
        ]
        return " and ".join(names)

    def rank_plan(self, side: Side, rank: int) -> RankPlan:
        """One rank's part of the plan."""
        report = self.reports[side][rank]
        process = self.processes.index(report.process)
        mine = {bucket.index: bucket for bucket in self.buckets_of.get((side, rank), ())}
        leads = [
            (other, index)
            for other in self.reports
            for index, theirs in enumerate(self.reports[other])
            if theirs.process == report.process
        ]
        return RankPlan(
            digest=self.digest,
            specs_digest=report.digest,
            entries=self.plan.entries,
            buckets=mine,
            routes={index: self.routes[index] for index in mine},
            rounds=tuple(self.rounds_of.get(process, ())),
            process=process,
            lead=leads[0] == (side, rank),
            device="own" if self.kind == "nccl" else "cpu",
            replicas=self.replicas.get(rank, ()) if side == "source" else (),
        )


def compile_plan(
    all_specs: Mapping[Side, Sequence[RankSpecs]],
    reports: Mapping[Side, Sequence[RankReport]],
    match_options: MatchOptions,
    bucket_bytes: int,
    transport: Transport,
) -> SyncPlan:
    """Compile the plan of a sync.

    Raises:
        ManifestError: If the sides do not describe the same weights.
        ValueError: If the transport cannot reach a target.
    """
    parts = sum(map(len, (*all_specs["source"], *all_specs["target"])))
    with collector_paused(lasting=True) if parts >= _WIDE else nullcontext():
        return _compiled(all_specs, reports, match_options, bucket_bytes, transport)


def _compiled(
    all_specs: Mapping[Side, Sequence[RankSpecs]],
    reports: Mapping[Side, Sequence[RankReport]],
    match_options: MatchOptions,
    bucket_bytes: int,
    transport: Transport,
) -> SyncPlan:
    source, target = reports["source"], reports["target"]
    plan = make_plan(
        all_specs["source"],
        all_specs["target"],
        match_options,
        source_locations=[Location(report.process, report.host) for report in source],
        target_locations=[Location(report.process, report.host) for report in target],
        bucket_bytes=bucket_bytes,
    )
    buckets = make_buckets(plan, bucket_bytes)
    routes = _routes(buckets, transport, source, target)
    processes = tuple(dict.fromkeys(report.process for report in (*source, *target)))
    rounds = make_rounds(
        [bucket for bucket, route in zip(buckets, routes, strict=True) if route == "link"],
        [processes.index(report.process) for report in source],
        [processes.index(report.process) for report in target],
    )
    kind = link_kind(transport, source, target)
    replicas: defaultdict[int, list[Move]] = defaultdict(list)
    for move, owners in plan.replicas:
        for owner in owners:
            replicas[owner].append(move)
    return SyncPlan(
        digest=digest((plan.digest, routes, processes, kind)),
        plan=plan,
        buckets=buckets,
        routes=routes,
        rounds=rounds,
        processes=processes,
        kind=kind,
        replicas={rank: tuple(moves) for rank, moves in replicas.items()},
        buckets_of=_by_rank(buckets),
        rounds_of=_by_process(rounds),
        reports=reports,
    )


def _routes(
    buckets: Sequence[Bucket], transport: Transport, source: Sequence[RankReport], target: Sequence[RankReport]
) -> tuple[Route, ...]:
    """The route of each bucket; buckets with the same ends have the same route, and follow each other."""
    routes: list[Route] = []
    for _, together in groupby(buckets, lambda bucket: (bucket.source, bucket.targets, bucket.distance)):
        first, *others = together
        routes.extend([choose_route(first, transport, source, target)] * (1 + len(others)))
    return tuple(routes)


def _by_rank(buckets: Sequence[Bucket]) -> dict[tuple[Side, int], list[Bucket]]:
    sources: defaultdict[int, list[Bucket]] = defaultdict(list)
    targets: defaultdict[int, list[Bucket]] = defaultdict(list)
    for bucket in buckets:
        sources[bucket.source].append(bucket)
        for rank in bucket.targets:
            targets[rank].append(bucket)
    found: dict[tuple[Side, int], list[Bucket]] = {("source", rank): mine for rank, mine in sources.items()}
    return found | {("target", rank): mine for rank, mine in targets.items()}


def _by_process(rounds: Sequence[Sequence[Hop]]) -> dict[int, list[tuple[Hop, ...]]]:
    found: dict[int, list[tuple[Hop, ...]]] = {}
    for hops in rounds:
        together: defaultdict[int, list[Hop]] = defaultdict(list)
        for hop in hops:
            together[hop.sender].append(hop)
            if hop.receiver != hop.sender:
                together[hop.receiver].append(hop)
        for process, own in together.items():
            found.setdefault(process, []).append(tuple(own))
    return found
