"""The state of one rank of a sync, and what the driver and it say to each other."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch

from twinkle_ray.objects.segments import host_identity
from twinkle_ray.weights.check import Changes, block_hash
from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.manifest import Convert, TensorMatch, item_size, torch_dtype
from twinkle_ray.weights.shards import LocalShards, Places, RankSpecs, check_own, hold, places_of, why_trained
from twinkle_ray.weights.transport.packing import slots_of, views

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from twinkle_ray.weights.boxes import Box
    from twinkle_ray.weights.check import Hashes
    from twinkle_ray.weights.plan import Move, Transfer
    from twinkle_ray.weights.transport.nccl import Meeting
    from twinkle_ray.weights.transport.packing import Slot

Side: TypeAlias = Literal["source", "target"]
Route: TypeAlias = Literal["process", "store", "messages"]


class RankAddress(NamedTuple):
    """One rank of one side of one sync."""

    sync: str
    side: Side
    rank: int

    def __str__(self) -> str:
        return f"{self.side} rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Report:
    """A rank's description of itself.

    Attributes:
        process: The same for ranks of one process, on any host.
        host: The same for processes that can share memory.
        digest: Of its specs.
        rank_specs: Its specs.
        device: Of its tensors: "cpu", "mixed", or the unique name of a device.
        trained: The sign that the component trains these weights; "" where there is none, and for a source.
        metadata: What its weights stand on, which is compared with the other side's.
    """

    process: str
    host: str
    digest: str
    rank_specs: RankSpecs
    device: str
    trained: str = ""
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RankPart:
    """A rank's part of a plan.

    Attributes:
        digest: Of the whole plan.
        specs_digest: Of the rank's specs that the plan was made for.
        entries: The plan's entries that this rank needs, by number.
        transfers: Those that this rank sends or receives, by number.
        routes: How each of them travels.
        ends: For those that travel as messages, the process that sends, and those that receive.
        process: Rank of its process among those that exchange messages.
        replicas: Blocks that this source rank and others hold.
        convert: The user's conversion.
    """

    digest: str
    specs_digest: str
    entries: Mapping[int, TensorMatch]
    transfers: Mapping[int, Transfer]
    routes: Mapping[int, Route]
    ends: Mapping[int, tuple[int, tuple[int, ...]]]
    process: int
    replicas: tuple[Move, ...] = ()
    convert: Convert = None


@dataclass(frozen=True, slots=True)
class StageOrder:
    """The driver's order to stage a version, to a rank of either side.

    Attributes:
        version: Its number.
        digest: Of the plan to follow.
        part: The rank's part of the plan; None where it has it.
        timeout: Seconds for what is waited for.
        hashed: Hash each block.
        handles: For a target, the handles of its transfers that lie in the backend's store.
        hashes: For a target, the hash of each of its blocks at the source; None compares nothing.
        waiting: For a target, the versions that it may not have applied yet; others are dropped.
        meeting: Where the processes make a group for messages over NCCL; None without one.
    """

    version: int
    digest: str
    part: RankPart | None
    timeout: float
    hashed: bool = False
    handles: Mapping[int, object] = field(default_factory=dict)
    hashes: Hashes | None = None
    waiting: tuple[int, ...] = ()
    meeting: Meeting | None = None


@dataclass(frozen=True, slots=True)
class StagedOut:
    """The staged blocks of a source rank.

    Attributes:
        handles: Of its transfers that lie in the backend's store, by number.
        hashes: Of the blocks that it sends, or holds a replica of.
        unchanged: All of its blocks are those of the last version, and its worker has run methods since.
    """

    handles: Mapping[int, object]
    hashes: Hashes
    unchanged: bool


class StagedIn(NamedTuple):
    """A version that has arrived at a target's rank.

    Attributes:
        specs_digest: Of the rank's specs that it came for.
        writes: The names that take each block, its place, and its memory.
    """

    specs_digest: str
    writes: Sequence[tuple[tuple[str, ...], Box, Tensor]]


class Rank:
    """The state of one rank: its tensors, its part of the plan, and the versions that wait to be applied.

    Attributes:
        lock: `stage_in` runs beside the methods, and `apply` with them.
        outgoing: StagedParts that a source's rank sends as messages, by transfer.
        received: StagedParts that have arrived as messages, by version and transfer.
        staged: The versions that wait, each with the plan by which it came.
        methods: Calls of methods that a source's worker had begun when it staged the last version.
        pinned: Pinned memory that a GPU's parts are copied to, by transfer.
    """

    def __init__(self, address: RankAddress) -> None:
        self.address = address
        self.lock = threading.RLock()
        self.local_shards: LocalShards = hold({})
        self.part: RankPart | None = None
        self.outgoing: dict[int, Sequence[Tensor]] = {}
        self.received: dict[tuple[int, int], Sequence[Tensor]] = {}
        self.staged: dict[int, StagedIn] = {}
        self.changes = Changes()
        self.methods = 0
        self.pinned: dict[int, list[Tensor]] = {}
        self.slots: dict[int, list[Slot]] = {}
        self._places: Places | None = None
        self._blocks: dict[int, list[Tensor]] = {}

    def read(self, instance: Any) -> None:
        """Read what `weights()` returns, unless it is the same memory as before.

        Raises:
            TypeError: If the component has no method `weights`.
            ManifestError: The sync writes it, and it is a copy.
        """
        if not callable(getattr(instance, "weights", None)):
            raise TypeError(
                f"{type(instance).__name__} is the {self.address.side} of a weight sync and has no method weights(): "
                "it returns a mapping from name to tensor, DTensor or Shard"
            )
        found = instance.weights()
        places = places_of(found)
        if places != self._places:  # the blocks that were read keep their memory, so that no other has its address
            written = self.address.side == "target"
            if written:
                check_own(found, instance.weights)
            self.local_shards = hold(found, written=written)
            self._places = places
            self._blocks.clear()

    def report(self, instance: Any) -> Report:
        """The rank as it is now."""
        local_shards = self.local_shards
        metadata: Mapping[str, str] = getattr(instance, "weight_metadata", dict)()
        host = host_identity()
        return Report(
            process=f"{host}/{os.getpid()}",
            host=host,
            digest=local_shards.digest,
            rank_specs=local_shards.rank_specs,
            device=_device_name(local_shards.devices),
            trained=why_trained(instance, local_shards) if self.address.side == "target" else "",
            metadata=tuple(metadata.items()),
        )

    def follows(self, order: StageOrder) -> bool:
        """Take the rank's part of a plan where it comes; whether this rank has the plan, made for its shards."""
        if order.part is not None:
            self.part = order.part
            for kept in (self.pinned, self.slots, self._blocks):
                kept.clear()
        part = self.part
        return part is not None and (part.digest, part.specs_digest) == (order.digest, self.local_shards.digest)

    def slots_of(self, index: int) -> list[Slot]:
        """The places of a transfer's blocks in its parts."""
        assert self.part is not None
        if index not in self.slots:
            entries = self.part.entries
            moves = self.part.transfers[index].moves
            wires = [entries[move.entry].wire for move in moves]
            self.slots[index] = slots_of(
                [(m.box.shape, wire, m.box.volume * item_size(wire)) for m, wire in zip(moves, wires, strict=True)]
            )
        return self.slots[index]

    def blocks(self, index: int) -> list[Tensor]:
        """A source's memory of a transfer's blocks."""
        assert self.part is not None
        if index not in self._blocks:
            self._blocks[index] = [self._block(move) for move in self.part.transfers[index].moves]
        return self._blocks[index]

    def _block(self, move: Move) -> Tensor:
        assert self.part is not None
        return self.local_shards.view(self.part.entries[move.entry].source, move.box)

    def converted(self, move: Move, block: Tensor) -> Tensor:
        """A block in its dtype in transit."""
        assert self.part is not None
        entry = self.part.entries[move.entry]
        wire = torch_dtype(entry.wire)
        if block.dtype == wire or not callable(self.part.convert):
            return block.to(wire)
        made = self.part.convert(entry.source, block, wire)
        if (made.dtype, made.shape) != (wire, block.shape):
            raise WeightSyncError(
                f"convert= made {made.dtype} {tuple(made.shape)} of a block of {entry.source!r} of shape "
                f"{tuple(block.shape)}; it returns {wire} of the same shape"
            )
        return made

    def hashed(self) -> dict[Move, int]:
        """A hash of each block that a source rank sends, or holds a replica of, in its dtype in transit."""
        assert self.part is not None
        moves = [move for transfer in self.part.transfers.values() for move in transfer.moves]
        return {
            move: block_hash(self.converted(move, self._block(move)))
            for move in dict.fromkeys([*moves, *self.part.replicas])
        }

    def arrived(self, parts: Mapping[int, Sequence[Tensor]]) -> tuple[StagedIn, dict[Move, Tensor]]:
        """A version of the parts of its transfers, and its blocks."""
        assert self.part is not None
        blocks = {
            move: block
            for index, transfer in self.part.transfers.items()
            for move, block in zip(transfer.moves, views(self.slots_of(index), parts[index]), strict=True)
        }
        entries = self.part.entries
        writes = [(entries[move.entry].targets, move.box, block) for move, block in blocks.items()]
        return StagedIn(self.part.specs_digest, writes), blocks

    def synchronize(self) -> None:
        """Wait for the work on the GPUs of this rank's tensors."""
        for device in self.local_shards.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def device(self) -> torch.device:
        """The device of its tensors."""
        return next(iter(self.local_shards.devices), torch.device("cpu"))


def _device_name(devices: frozenset[torch.device]) -> str:
    if not devices or all(device.type == "cpu" for device in devices):
        return "cpu"
    if len(devices) > 1:
        return "mixed"
    (device,) = devices
    return f"cuda:{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else str(device)
