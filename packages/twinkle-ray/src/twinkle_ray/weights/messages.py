"""The messages between the controller of a sync and its ranks: addresses, commands, reports and results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from twinkle_ray.weights.rendezvous.session import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_ray.weights.shards.specs import RankSpecs

Side: TypeAlias = Literal["source", "target"]
MemoryFile: TypeAlias = tuple[int, int]  # the process that made it, and its inode
Route: TypeAlias = Literal["link", "process", "shared", "cuda_ipc", "object_store"]


@dataclass(frozen=True, slots=True)
class RankAddress:
    """One rank of one side of one sync."""

    sync: str
    side: Side
    rank: int

    def __str__(self) -> str:
        return f"{self.side} rank {self.rank}"


@dataclass(frozen=True, slots=True)
class SyncCommand:
    """The controller's command to every rank: run one sync.

    Attributes:
        version: Of the weights after this sync, counted from 1.
        attempt: Number of this attempt; failed ones count too.
        plan_digest: Of the plan to run.
        detached: Return once the buckets are packed, and send them in the background.
        checksum: Make a CRC-32 of each bucket at both ends.
        reversible: Keep the old values until the commit is final.
        in_flight: The target holds what arrives, and writes it between two of its calls.
        depth: Rounds in flight.
        occupied: Memory files in which tensors of the target live; None where that is not known of all.
    """

    version: int
    attempt: int
    plan_digest: str
    detached: bool = False
    checksum: bool = False
    reversible: bool = True
    in_flight: bool = False
    depth: int = 8
    occupied: frozenset[MemoryFile] | None = frozenset()

    def phase(self, step: str) -> Phase:
        """A step of this attempt, as the heartbeats name it."""
        return Phase(self.attempt, step)


@dataclass(frozen=True, slots=True)
class RankReport:
    """A rank's answer to `describe`.

    Attributes:
        process: The same for ranks of one process, on any host.
        host: The same for processes that can share memory.
        node: Name of its host.
        pid: Process id.
        digest: Of its specs.
        rank_specs: Its specs; None when the controller has those of this digest.
        device: Of its tensors: "cpu", "mixed", or the unique name of a device.
        prepared: Digest of the plan that it has; None without one.
        generation: Of its process group; None without one.
        occupied: Memory files in which its tensors live; None if a sync does not replace their memory.
        goes_back: Whether the old values are left anyway until the sync is final: its memory is replaced or staged.
        trained: The sign that the component trains these weights; "" where there is none, and for a source.
        facts: What its weights stand on, which is compared with the other side's.
    """

    process: str
    host: str
    node: str
    pid: int
    digest: str
    rank_specs: RankSpecs | None
    device: str
    prepared: str | None
    generation: int | None
    occupied: frozenset[MemoryFile] | None = None
    goes_back: bool = False
    trained: str = ""
    facts: tuple[tuple[str, str], ...] = ()

    def stands_as(self, before: RankReport, plan_digest: str) -> bool:
        """Whether the rank has the plan, and nothing that the plan stands on has changed since an earlier report."""
        now = replace(self, rank_specs=None, prepared=None, generation=None)
        return self.prepared == plan_digest and now == replace(before, rank_specs=None, prepared=None, generation=None)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step on one rank.

    Attributes:
        handles: Of the buckets that it put into block stores, by index.
        checksums: CRC-32 of the buckets that it sent or received, by index; empty unless the command asks for them.
        seconds: Duration of the step.
        nbytes: Bytes of this rank's buckets.
    """

    handles: Mapping[int, object]
    checksums: Mapping[int, int]
    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class RepeatReport:
    """A rank's answer to `repeat`.

    Attributes:
        report: As `describe` returns it.
        transferred: The result of `transfer`; None if the rank has changed, and has transferred nothing.
    """

    report: RankReport
    transferred: StepResult | None
