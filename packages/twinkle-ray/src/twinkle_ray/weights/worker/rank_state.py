"""One rank of one side of a sync, between the controller's calls."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.planning.manifest import torch_dtype
from twinkle_ray.weights.planning.transfer_plan import Move
from twinkle_ray.weights.shards.shard import Weights, fingerprint, hold
from twinkle_ray.weights.shards.value_digest import digest_values
from twinkle_ray.weights.transport import BlockStore, block_store_for
from twinkle_ray.weights.transport.packing import empty_bytes, slot_views
from twinkle_ray.weights.worker.commit import Commit, Write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.weights.messages import Route, Side, SyncCommand
    from twinkle_ray.weights.planning.rank_plan import RankPlan
    from twinkle_ray.weights.planning.transfer_plan import Digests
    from twinkle_ray.weights.shards.specs import LocalShards


# routes whose blocks arrive in the same memory every time
_LASTING = frozenset({"link", "shared", "cuda_ipc"})


@dataclass(frozen=True, slots=True, eq=False)
class _KeptCommit:
    """The writes of a commit, and the arrivals that they were listed for."""

    arrivals: Mapping[int, Sequence[Tensor]]
    commit: Commit
    reversible: bool


class RankState:
    """One rank of one side: its tensors, its program, and the buffers that the program needs.

    Views and copy lists are kept from sync to sync for as long as `weights()` answers with the same memory.

    Args:
        sync: Id of the sync.
    """

    def __init__(self, sync: str) -> None:
        self._sync = sync
        self.holding: LocalShards = hold({})
        self.program: RankPlan | None = None
        self.packed: dict[int, Tensor] = {}
        self.arrived: dict[int, Sequence[Tensor]] = {}
        self.handles: dict[int, object] = {}
        self.checksums: dict[int, int] = {}
        self._depots: dict[Route, BlockStore] = {}
        self._fingerprint: object = None
        self._blocks: dict[int, list[Tensor]] = {}
        self._staging: dict[int, tuple[Tensor, Sequence[Tensor]]] = {}
        self._commit: _KeptCommit | None = None

    def look(self, weights: Weights, *, written: bool) -> None:
        """Read what `weights()` returned, unless it is what was read before."""
        seen = fingerprint(weights)
        if seen != self._fingerprint:
            self.holding = hold(weights, written=written)
            self._fingerprint = seen
            self._blocks.clear()
            self._commit = None

    def running(self, order: SyncCommand) -> RankPlan:
        """The program of an order."""
        program = self.program
        assert program is not None and program.digest == order.program, "prepare comes first"
        if program.sheet != self.holding.digest:
            raise WeightSyncError("weights() changed between the survey and the transfer")
        return program

    def device(self) -> torch.device:
        """Where buckets of links are staged for this rank."""
        program = self.program
        assert program is not None
        if program.device == "cpu":
            return torch.device("cpu")
        return next(tensor.device for pieces in self.holding.pieces.values() for _, tensor in pieces)

    def synchronize(self) -> None:
        """Wait until the GPUs of this rank's tensors have done what was asked of them."""
        devices = {tensor.device for pieces in self.holding.pieces.values() for _, tensor in pieces if tensor.is_cuda}
        for device in devices:
            torch.cuda.synchronize(device)

    def depot(self, route: Route) -> BlockStore:
        """The depot for a route, made on first use."""
        if route not in self._depots:
            self._depots[route] = block_store_for(route, self._sync)
        return self._depots[route]

    def blocks(self, program: RankPlan, index: int) -> list[Tensor]:
        """The source's tensors for a bucket, one for each slot."""
        if index not in self._blocks:
            entries = program.entries
            slots = program.buckets[index].slots
            self._blocks[index] = [self.holding.view(entries[slot.entry].source, slot.box) for slot in slots]
        return self._blocks[index]

    def staging(self, program: RankPlan, index: int) -> Tensor:
        """Where a bucket of a link arrives; kept from sync to sync."""
        if index not in self._staging:
            bucket = program.buckets[index]
            buffer = empty_bytes(bucket.nbytes, self.device())
            self._staging[index] = (buffer, slot_views(bucket, buffer))
        return self._staging[index][0]

    def arrivals(self, program: RankPlan) -> dict[int, Sequence[Tensor]]:
        """The blocks of every bucket of a target rank, by the bucket's index."""
        return {
            index: self._staging[index][1] if program.routes[index] == "link" else self.arrived[index]
            for index in program.buckets
        }

    def commit(self, program: RankPlan, *, reversible: bool) -> Commit:
        """The writes of this commit: several for a block whose tensors were tied at the source."""
        arrivals = self.arrivals(program)
        kept = self._commit
        if (
            kept is None
            or kept.reversible != reversible
            or any(kept.arrivals[index] is not blocks for index, blocks in arrivals.items())
        ):
            writes: list[Write] = []
            for index, blocks in arrivals.items():
                bucket, route = program.buckets[index], program.routes[index]
                owned = route == "link" or (route == "shared" and len(bucket.targets) == 1)
                for slot, block in zip(bucket.slots, blocks, strict=True):
                    names = [name for name in program.entries[slot.entry].targets if name in self.holding.pieces]
                    places = [view for name in names for view in self.holding.views(name, slot.box)]
                    assert places, f"this rank holds nothing around {slot.box}"
                    writes.extend(Write(place, block, owned and len(places) == 1, slot.entry) for place in places)
            kept = self._commit = _KeptCommit(arrivals, Commit(writes, reversible=reversible), reversible)
        return kept.commit

    def digests(self, program: RankPlan, side: Side) -> Digests:
        """A digest of every block that this rank sends, holds a replica of, or has received; as the target has them."""
        slots = [Move(slot.entry, slot.box) for bucket in program.buckets.values() for slot in bucket.slots]
        found: dict[Move, list[Tensor]] = {}
        for move in dict.fromkeys([*slots, *program.replicas]):
            entry = program.entries[move.entry]
            if side == "source":
                block = self.holding.view(entry.source, move.box)
                blocks = [block.to(torch_dtype(entry.wire)).to(torch_dtype(entry.dtype))]
            else:
                names = [name for name in entry.targets if name in self.holding.pieces]
                blocks = [view for name in names for view in self.holding.views(name, move.box)]
            found[move] = [digest_values(block, move.box) for block in blocks]
        numbers = iter(_numbers([value for values in found.values() for value in values]))
        return {move: tuple(islice(numbers, len(values))) for move, values in found.items()}

    def rollback(self) -> None:
        """Take back the latest commit, whatever became of it."""
        if self._commit is not None:
            self._commit.commit.rollback()

    def finalize(self) -> None:
        """Make the latest commit final, and drop what the sync needs no more."""
        if self._commit is not None:
            self._commit.commit.finalize()
        self.clear()

    def unpack(self, index: int) -> None:
        """Drop a packed bucket that has left."""
        del self.packed[index]

    def clear(self) -> None:
        """Drop what a finished or failed sync left behind; memory that the next one fills again stays."""
        self.arrived.clear()
        self.packed.clear()
        if self.program is None or not set(self.program.routes.values()) <= _LASTING:
            self._commit = None
        for depot in self._depots.values():
            depot.clear()

    def forget(self) -> None:
        """Give back everything that a program needed."""
        for depot in self._depots.values():
            depot.close()
        self.program = self._commit = None
        for kept in (self._depots, self._staging, self._blocks, self.packed, self.arrived, self.handles):
            kept.clear()


def _numbers(values: Sequence[Tensor]) -> list[int]:
    """One-element tensors as numbers, with one wait for each device."""
    by_device: dict[torch.device, list[int]] = {}
    for i, value in enumerate(values):
        by_device.setdefault(value.device, []).append(i)
    found = [0] * len(values)
    for where in by_device.values():
        for i, number in zip(where, torch.stack([values[i] for i in where]).tolist(), strict=True):
            found[i] = number
    return found
