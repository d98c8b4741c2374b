"""What one rank is told to do: its part of a plan, small enough to be sent once and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from twinkle_ray.weights.rendezvous.session import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_ray.weights.shards.specs import RankSpecs

Side: TypeAlias = Literal["source", "target"]
Route: TypeAlias = Literal["link", "process", "shared", "cuda_ipc", "object_store"]


@dataclass(frozen=True, slots=True)
class RankAddress:
    """Which rank of which side of which sync a call is for."""

    sync: str
    side: Side
    rank: int

    def __str__(self) -> str:
        return f"{self.side} rank {self.rank}"


@dataclass(frozen=True, slots=True)
class SyncCommand:
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
class RankReport:
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
        generation: Of the group that it is in.
    """

    process: str
    host: str
    node: str
    pid: int
    digest: str
    sheet: RankSpecs | None
    device: str
    prepared: str | None
    generation: int | None


@dataclass(frozen=True, slots=True)
class StepResult:
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
