"""A plan with the way of each transfer: within a process, through the backend's store, or as messages."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch

from twinkle_ray.weights.plan import Location, SyncPlan, make_plan
from twinkle_ray.weights.shards import digest
from twinkle_ray.weights.state import RankPart, Report, Route, Side
from twinkle_remote.backends.support import active

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.weights.check import Hashes
    from twinkle_ray.weights.manifest import Convert, MatchOptions
    from twinkle_ray.weights.plan import Move

Transport: TypeAlias = Literal["store", "nccl"] | None
Check: TypeAlias = Literal["first", "always", "never"]
Kind: TypeAlias = Literal["store", "nccl", "launched"]
_NAMES = get_args(get_args(Transport)[0])


def check_transport(transport: object) -> None:
    """Refuse an unknown transport.

    Raises:
        ValueError: With the known ones.
    """
    if transport is not None and transport not in _NAMES:
        raise ValueError(f"transport={transport!r} is none of None, {', '.join(map(repr, _NAMES))}")


@dataclass(frozen=True, slots=True)
class Compiled:
    """Everything that follows from both sides' shards and from where their ranks run.

    Attributes:
        digest: Equal for equal plans.
        plan: The blocks, with their senders and receivers, which are positions among `ranks`.
        ranks: Of each side, in the order of their positions.
        kind: How blocks travel between processes.
        routes: The way of each transfer.
        processes: Every process once, sources first; its position is its rank in a group for messages.
        reports: Of each side, by position.
        replicas: For each source rank, the blocks that it and others hold.
        own: For each rank, the numbers of its transfers.
        convert: The user's conversion.
    """

    digest: str
    plan: SyncPlan
    ranks: Mapping[Side, Sequence[int]]
    kind: Kind
    routes: Sequence[Route]
    processes: Sequence[str]
    reports: Mapping[Side, Sequence[Report]]
    replicas: Mapping[int, Sequence[Move]]
    own: Mapping[tuple[Side, int], Sequence[int]]
    convert: Convert

    def transfers_of(self, side: Side, rank: int) -> Sequence[int]:
        """The numbers of the transfers of a rank."""
        return self.own.get((side, rank), ())

    def part(self, side: Side, rank: int) -> RankPart:
        """A rank's part of the plan."""
        position = self.ranks[side].index(rank)
        report = self.reports[side][position]
        transfers = {index: self.plan.transfers[index] for index in self.transfers_of(side, rank)}
        replicas = tuple(self.replicas.get(position, ())) if side == "source" else ()
        needed = {move.entry for transfer in transfers.values() for move in transfer.moves}
        needed |= {move.entry for move in replicas}
        return RankPart(
            digest=self.digest,
            specs_digest=report.digest,
            entries={entry: self.plan.entries[entry] for entry in sorted(needed)},
            transfers=transfers,
            routes={index: self.routes[index] for index in transfers},
            ends={index: self._ends(index) for index in transfers if self.routes[index] == "messages"},
            process=self.processes.index(report.process),
            replicas=replicas,
            convert=self.convert if callable(self.convert) and side == "source" else None,
        )

    def _ends(self, index: int) -> tuple[int, tuple[int, ...]]:
        transfer = self.plan.transfers[index]
        sender = self.processes.index(self.reports["source"][transfer.source].process)
        receivers = {self.processes.index(self.reports["target"][rank].process) for rank in transfer.targets}
        return sender, tuple(sorted(receivers))


def compile_plan(
    reports: Mapping[Side, Mapping[int, Report]],
    match_options: MatchOptions,
    transport: Transport,
) -> Compiled:
    """Plan a sync from the reports of both sides, by rank.

    Args:
        reports: Of each rank that takes part.
        match_options: Renaming, subset and conversion.
        transport: As in `WeightSync`.

    Raises:
        ManifestError: The sides do not describe the same weights.
        ValueError: The transport cannot reach all ranks.
    """
    ranks: dict[Side, list[int]] = {side: sorted(of_side) for side, of_side in reports.items()}
    listed: dict[Side, list[Report]] = {side: [reports[side][rank] for rank in ranks[side]] for side in ranks}
    plan = make_plan(
        [report.rank_specs for report in listed["source"]],
        [report.rank_specs for report in listed["target"]],
        match_options,
        source_locations=[Location(report.process, report.host) for report in listed["source"]],
        target_locations=[Location(report.process, report.host) for report in listed["target"]],
    )
    everyone = [*listed["source"], *listed["target"]]
    processes = tuple(dict.fromkeys(report.process for report in everyone))
    kind = _kind(transport, everyone) if any(one.distance != "process" for one in plan.transfers) else "store"
    routes: list[Route] = [
        "process" if one.distance == "process" else "store" if kind == "store" else "messages" for one in plan.transfers
    ]
    replicas: defaultdict[int, list[Move]] = defaultdict(list)
    for move, owners in plan.replicas:
        for owner in owners:
            replicas[owner].append(move)
    own: defaultdict[tuple[Side, int], list[int]] = defaultdict(list)
    for index, transfer in enumerate(plan.transfers):
        own["source", ranks["source"][transfer.source]].append(index)
        for position in transfer.targets:
            own["target", ranks["target"][position]].append(index)
    stands_on = [
        (side, rank, report.digest, report.process) for side in ranks for rank, report in reports[side].items()
    ]
    return Compiled(
        digest((stands_on, kind, plan.entries)),
        plan,
        ranks,
        kind,
        routes,
        processes,
        listed,
        replicas,
        own,
        match_options.convert,
    )


def _kind(transport: Transport, reports: Sequence[Report]) -> Kind:
    """The way between processes: NCCL where each has a GPU of its own, messages in a launched program, else the store.

    Raises:
        ValueError: The transport is "nccl", and NCCL cannot work.
    """
    runtime = active()
    if runtime is not None and runtime.backend.in_process:
        return "launched"
    devices = {report.process: report.device for report in reports}
    gpus = all(device.startswith("cuda:") for device in devices.values())
    apart = len(set(devices.values())) == len(devices)
    built = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    if transport == "nccl" and not (gpus and apart and built):
        why = "weights are on the CPU" if not gpus else "two processes share a GPU" if not apart else "torch lacks NCCL"
        raise ValueError(f"transport='nccl' needs every process on a GPU of its own: {why}; use 'store' or None")
    return "nccl" if transport != "store" and gpus and apart and built else "store"


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """The options of a sync, as `WeightSync` documents them."""

    timeout: float
    match_options: MatchOptions
    check: Check
    transport: Transport


@dataclass(slots=True)
class Version:
    """A version that the source has staged.

    Attributes:
        number: Its number.
        compiled: The plan by which it was staged.
        handles: Of its transfers in the backend's store.
        hashes: Of its blocks at the source; None where nothing is compared.
        ranks: The ranks of the target that have got it.
    """

    number: int
    compiled: Compiled
    handles: Mapping[int, object]
    hashes: Hashes | None
    ranks: Sequence[int] = ()

    @property
    def by_messages(self) -> bool:
        """Whether its blocks stay where they are until messages have carried them to the target."""
        return self.compiled.kind != "store"

    @property
    def moved(self) -> int:
        """Bytes that left the source's ranks; a block counts once, however many ranks receive it."""
        return sum(transfer.nbytes for transfer in self.compiled.plan.transfers)
