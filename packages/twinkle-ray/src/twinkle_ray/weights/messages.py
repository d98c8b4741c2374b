"""What one rank is told to do: its part of a plan, small enough to be sent once and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from twinkle_ray.weights.rendezvous.session import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_ray.weights.planning.buckets import Bucket
    from twinkle_ray.weights.planning.manifest import Entry
    from twinkle_ray.weights.planning.schedule import Hop
    from twinkle_ray.weights.planning.transfer_plan import Move
    from twinkle_ray.weights.shards.shard import Sheet

Side: TypeAlias = Literal["source", "target"]
Route: TypeAlias = Literal["link", "process", "shared", "cuda_ipc", "object_store"]
Digests: TypeAlias = "Mapping[Move, tuple[int, ...]]"


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank of which side of which sync a call is for."""

    sync: str
    side: Side
    rank: int

    def __str__(self) -> str:
        return f"{self.side} rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Program:
    """A rank's part of a plan.

    Attributes:
        digest: Of the whole plan with its routes.
        sheet: Digest of the rank's sheet that it was made for.
        entries: The plan's entries.
        buckets: Those that this rank sends or receives, by index.
        routes: How each of them travels.
        rounds: The hops of this rank's process, for each round that has any.
        process: Rank of its process in the link's group.
        lead: This rank runs its process's hops; another rank of the same process does otherwise.
        device: Where buckets of links are staged: "cpu", or the rank's own device.
        replicas: Blocks that this rank of the source holds and that other ranks hold too.
    """

    digest: str
    sheet: str
    entries: tuple[Entry, ...]
    buckets: Mapping[int, Bucket]
    routes: Mapping[int, Route]
    rounds: tuple[tuple[Hop, ...], ...]
    process: int
    lead: bool
    device: Literal["cpu", "own"]
    replicas: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """One sync, as every rank is told of it.

    Attributes:
        version: What the weights will be called.
        attempt: Counts the attempts, failed ones too.
        program: Digest of the plan to run.
        detached: Return when buckets are packed, and go on in the background.
        checksum: Hash each bucket at both ends.
        reversible: Write so that it can be taken back.
        depth: Rounds in flight.
    """

    version: int
    attempt: int
    program: str
    detached: bool = False
    checksum: bool = False
    reversible: bool = True
    depth: int = 8

    def phase(self, step: str) -> Phase:
        """A step of this attempt, as signs of life name it."""
        return Phase(self.attempt, step)


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank says of itself.

    Attributes:
        process: The same for ranks of one process, on any host.
        host: The same for processes that can share memory.
        node: Name of its host.
        pid: Process id.
        digest: Of its sheet.
        sheet: None when the controller knows the digest.
        device: Of its tensors: "cpu", "mixed", or a device's unique name.
        prepared: Digest of the program that it has.
        epoch: Of the group that it is in.
    """

    process: str
    host: str
    node: str
    pid: int
    digest: str
    sheet: Sheet | None
    device: str
    prepared: str | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rank did.

    Attributes:
        handles: Of the buckets that it left in depots.
        checksums: Of the buckets that it sent or received, when asked for.
        seconds: How long it took.
        nbytes: Bytes sent or received.
    """

    handles: Mapping[int, object]
    checksums: Mapping[int, int]
    seconds: float
    nbytes: int
