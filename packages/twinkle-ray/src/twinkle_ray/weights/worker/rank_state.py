"""The state of one rank between the controller's calls: its tensors, its plan, and its buffers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.planning.box_plan import Move
from twinkle_ray.weights.planning.manifest import torch_dtype
from twinkle_ray.weights.replacement.replaceable import ReplaceableWeights
from twinkle_ray.weights.replacement.staged import StagedWeights
from twinkle_ray.weights.replacement.swap_commit import swaps_made
from twinkle_ray.weights.replacement.swap_state import SwapState
from twinkle_ray.weights.shards.fingerprint import Fingerprint
from twinkle_ray.weights.shards.shard import Weights, hold
from twinkle_ray.weights.shards.value_digest import digest_values
from twinkle_ray.weights.transport import BlockStore, block_store_for
from twinkle_ray.weights.transport.packing import empty_bytes, is_kept, slot_views
from twinkle_ray.weights.worker.commit import Commit, Write
from twinkle_ray.weights.worker.examination import Examined, blocks_apart, not_finite
from twinkle_ray.weights.worker.held import HeldVersions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_ray.weights.messages import MemoryFile, RankReport, Route, Side, SyncCommand
    from twinkle_ray.weights.planning.box_plan import Digests
    from twinkle_ray.weights.planning.sync_plan import RankPlan
    from twinkle_ray.weights.shards.specs import LocalShards
    from twinkle_ray.weights.worker.held import HeldVersion


# routes whose blocks arrive in the same memory in every sync
_LASTING = frozenset({"link", "shared", "cuda_ipc"})


@dataclass(frozen=True, slots=True, eq=False)
class _KeptCommit:
    """A commit that can run again, and the arrivals that it writes."""

    arrivals: Mapping[int, Sequence[Tensor]]
    commit: Commit
    reversible: bool


class RankState:
    """One rank of one side: its tensors, its plan, and the buffers that the plan needs.

    Views and copy lists are kept from sync to sync for as long as `weights()` returns the same memory.

    Args:
        sync: Id of the sync.

    Attributes:
        packed, arrived, handles, checksums: Of buckets, by index.
        got: The handles of the latest `fetch`.
        reported: Its latest report.
        written: The latest attempt that it has written, and the entries that changed by it, as a set of bits.
        finalized: The latest attempt that is final.
    """

    def __init__(self, sync: str) -> None:
        self._sync = sync
        self.local_shards: LocalShards = hold({})
        self.rank_plan: RankPlan | None = None
        self.packed: dict[int, Tensor] = {}
        self.arrived: dict[int, Sequence[Tensor]] = {}
        self.handles: dict[int, object] = {}
        self.got: Mapping[int, object] = {}
        self.reported: RankReport | None = None
        self.written = 0, 0
        self.finalized = 0
        self.checksums: dict[int, int] = {}
        self._block_stores: dict[Route, BlockStore] = {}
        self._fingerprint: Fingerprint | None = None
        self._blocks: dict[int, list[Tensor]] = {}
        self._staging: dict[int, tuple[Tensor, Sequence[Tensor]]] = {}
        self._commit: _KeptCommit | None = None
        self._before: tuple[Fingerprint | None, LocalShards] | None = None
        self.held = HeldVersions()
        self.swap_state: SwapState | None = None
        self._staged_weights: StagedWeights[Any] | None = None

    def read(self, weights: Weights, *, written: bool) -> None:
        """Read what `weights()` returned, unless it is the same memory as before."""
        replaced = swaps_made()
        self._staged_weights = weights if written and isinstance(weights, StagedWeights) else None
        replaceable = written and isinstance(weights, ReplaceableWeights)
        if replaceable is (self.swap_state is None):
            self.forget()
            self.swap_state = SwapState() if replaceable else None
            self._fingerprint = None
        if self._fingerprint is None or not self._fingerprint.matches(weights, same_parameters=replaceable):
            self.local_shards = hold(weights, written=written)
            self._fingerprint = Fingerprint(weights)
            self._blocks.clear()
            self._commit = None
            if self.swap_state is not None:
                self.swap_state.read(weights, self.local_shards)
        if self.swap_state is not None:
            self.swap_state.read_at = replaced

    def has_read(self, weights: Weights) -> bool:
        """Whether weights are in the memory that was read last."""
        same = self.swap_state is not None
        return self._fingerprint is not None and self._fingerprint.matches(weights, same_parameters=same)

    def begin(self) -> None:
        """Begin a sync: memory in which no tensor lives is free."""
        if self.swap_state is not None:
            self.swap_state.begin()

    def running(self, command: SyncCommand) -> RankPlan:
        """The plan that a command is for."""
        rank_plan = self.rank_plan
        assert rank_plan is not None and rank_plan.digest == command.plan_digest, "prepare comes first"
        self.check_shards(rank_plan)
        return rank_plan

    def check_shards(self, rank_plan: RankPlan) -> None:
        """Check that a plan was made for this rank's shards.

        Raises:
            WeightSyncError: It was made for others.
        """
        if rank_plan.specs_digest != self.local_shards.digest:
            raise WeightSyncError("the plan was made for other shards than weights() returned on this rank: sync again")

    @property
    def is_read(self) -> bool:
        """Whether the component's weights were read."""
        return self._fingerprint is not None

    @property
    def goes_back(self) -> bool:
        """Whether the old values are left anyway until a sync is final."""
        return self.swap_state is not None or self._staged_weights is not None

    def device(self) -> torch.device:
        """The device on which this rank stages the buckets of links."""
        rank_plan = self.rank_plan
        assert rank_plan is not None
        if rank_plan.device == "cpu":
            return torch.device("cpu")
        return next(tensor.device for pieces in self.local_shards.pieces.values() for _, tensor in pieces)

    def synchronize(self) -> None:
        """Wait for the work on the GPUs of this rank's tensors."""
        for device in self.local_shards.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def block_store(self, route: Route) -> BlockStore:
        """The block store of a route, made on first use."""
        if route not in self._block_stores:
            rank_plan = self.rank_plan
            assert rank_plan is not None, "prepare comes first"
            buckets = [bucket for index, bucket in rank_plan.buckets.items() if rank_plan.routes[index] == route]
            private = self.swap_state is not None
            self._block_stores[route] = block_store_for(route, self._sync, buckets, private=private)
        return self._block_stores[route]

    def begin_block_stores(self, occupied: frozenset[MemoryFile] | None) -> None:
        """Have all block stores of the plan begin a sync."""
        assert self.rank_plan is not None, "prepare comes first"
        for route in set(self.rank_plan.routes.values()) - {"link"}:
            self.block_store(route).begin(occupied)

    def blocks(self, rank_plan: RankPlan, index: int) -> list[Tensor]:
        """The source's tensors for a bucket, one for each slot."""
        if index not in self._blocks:
            entries = rank_plan.entries
            slots = rank_plan.buckets[index].slots
            self._blocks[index] = [self.local_shards.view(entries[slot.entry].source, slot.box) for slot in slots]
        return self._blocks[index]

    def staging(self, rank_plan: RankPlan, index: int) -> Tensor:
        """The buffer in which a bucket of a link arrives; kept from sync to sync."""
        if self.swap_state is not None:
            return self.swap_state.staging(rank_plan, index, self.device())
        if index not in self._staging:
            bucket = rank_plan.buckets[index]
            buffer = empty_bytes(bucket.nbytes, self.device())
            self._staging[index] = (buffer, slot_views(bucket, buffer))
        return self._staging[index][0]

    def fetch(self, rank_plan: RankPlan) -> None:
        """Get the buckets from block stores by the handles of the latest `fetch`."""
        for index, bucket in rank_plan.buckets.items():
            route = rank_plan.routes[index]
            if route != "link" and index not in self.arrived:
                self.arrived[index] = self.block_store(route).get(bucket, self.got[index])

    def arrivals(self, rank_plan: RankPlan) -> dict[int, Sequence[Tensor]]:
        """The arrived blocks of every bucket of a target rank, by the bucket's index."""
        return {
            index: self._staged(index) if rank_plan.routes[index] == "link" else self.arrived[index]
            for index in rank_plan.buckets
        }

    def _staged(self, index: int) -> Sequence[Tensor]:
        return self._staging[index][1] if self.swap_state is None else self.swap_state.staged(index)

    def apply(self, rank_plan: RankPlan, weights: Callable[[], Weights], *, reversible: bool) -> int:
        """Write the arrivals, or make them the memory of the parameters that may be replaced.

        Args:
            rank_plan: The rank's plan.
            weights: Of the component.
            reversible: Have `rollback` restore the old values.

        Returns:
            The entries whose values have changed, as a set of bits.

        Raises:
            WeightSyncError: If the component's weights are others than before.
        """
        if self.swap_state is None:
            commit = self._kept_commit(rank_plan, reversible=reversible and self._staged_weights is None)
            return self._apply_staged(rank_plan, commit)
        if self.swap_state.outdated():
            self.read(weights(), written=True)
            self.check_shards(rank_plan)
        self._before = (self._fingerprint, self.local_shards)
        shared = [buffer for block_store in self._block_stores.values() for buffer in block_store.buffers()]
        arrivals = self.arrivals(rank_plan)
        try:
            changed = self.swap_state.apply(rank_plan, arrivals, self.local_shards, shared, reversible=reversible)
            self._fingerprint, self.local_shards, _ = self.swap_state.after(weights)
        except BaseException:
            self.rollback()
            raise
        return changed

    def apply_held(self, version: HeldVersion) -> None:
        """Write a held version; it cannot be rolled back."""
        self._apply_staged(version.rank_plan, self.held_commit(version))
        self._settle(version.rank_plan)

    def _apply_staged(self, rank_plan: RankPlan, commit: Commit) -> int:
        """Run a commit; what an earlier one left in `StagedWeights` counts as changed, too."""
        left = self.unsettled_entries(rank_plan)
        if self._staged_weights is not None:
            self._staged_weights.unsettle(self._written_names(rank_plan))
        return commit.apply() | left

    def unsettled_entries(self, rank_plan: RankPlan) -> int:
        """The entries of which a sync that failed has left values in `StagedWeights`, as a set of bits.

        Raises:
            WeightSyncError: It left values of names that this plan does not write, and the component would take them.
        """
        if self._staged_weights is None or not self._staged_weights.unsettled:
            return 0
        names = self._staged_weights.unsettled
        others = names - self._written_names(rank_plan)
        if others:
            raise WeightSyncError(
                f"a sync that failed left values of {min(others)!r} ({len(others)} names) in StagedWeights, which this "
                "sync does not write: sync these first"
            )
        return sum(1 << i for i, entry in enumerate(rank_plan.entries) if not names.isdisjoint(entry.targets))

    def _written_names(self, rank_plan: RankPlan) -> set[str]:
        return {name for entry in rank_plan.entries for name in entry.targets if name in self.local_shards.pieces}

    def _settle(self, rank_plan: RankPlan) -> None:
        if self._staged_weights is not None:
            self._staged_weights.settle(self._written_names(rank_plan))

    def _kept_commit(self, rank_plan: RankPlan, *, reversible: bool) -> Commit:
        """The commit that writes the arrivals; a block whose tensors are tied at the source has several writes."""
        arrivals = self.arrivals(rank_plan)
        kept = self._commit
        if (
            kept is None
            or kept.reversible != reversible
            or any(kept.arrivals[index] is not blocks for index, blocks in arrivals.items())
        ):
            writes = self._writes(rank_plan, arrivals)
            kept = self._commit = _KeptCommit(arrivals, Commit(writes, reversible=reversible), reversible)
        return kept.commit

    def held_commit(self, version: HeldVersion) -> Commit:
        """The commit that writes a held version; it cannot be rolled back."""
        return Commit(self._writes(version.rank_plan, version.blocks), reversible=False)

    def held_digests(self, version: HeldVersion) -> Digests:
        """Digests of the blocks of a held version, in the target's dtype."""
        found = {}
        for index, blocks in version.blocks.items():
            for slot, block in zip(version.rank_plan.buckets[index].slots, blocks, strict=True):
                entry = version.rank_plan.entries[slot.entry]
                found[Move(slot.entry, slot.box)] = digest_values(block.to(torch_dtype(entry.dtype)), slot.box)
        numbers = _numbers(list(found.values()))
        return {move: (number,) for move, number in zip(found, numbers, strict=True)}

    def _writes(self, rank_plan: RankPlan, arrivals: Mapping[int, Sequence[Tensor]]) -> list[Write]:
        writes: list[Write] = []
        for index, blocks in arrivals.items():
            bucket, route = rank_plan.buckets[index], rank_plan.routes[index]
            owned = route == "link" or (route == "shared" and len(bucket.targets) == 1)
            for slot, block in zip(bucket.slots, blocks, strict=True):
                names = [name for name in rank_plan.entries[slot.entry].targets if name in self.local_shards.pieces]
                views = [view for name in names for view in self.local_shards.views(name, slot.box)]
                assert views, f"this rank holds no block around {slot.box}"
                writes.extend(Write(view, block, owned and len(views) == 1, slot.entry) for view in views)
        return writes

    def digests(self, rank_plan: RankPlan, side: Side) -> Digests:
        """Digests of every block that this rank sends, holds a replica of, or has received, in the target's dtype."""
        slots = [Move(slot.entry, slot.box) for bucket in rank_plan.buckets.values() for slot in bucket.slots]
        found: dict[Move, list[Tensor]] = {}
        for move in dict.fromkeys([*slots, *rank_plan.replicas]):
            entry = rank_plan.entries[move.entry]
            if side == "source":
                block = self.local_shards.view(entry.source, move.box)
                blocks = [block.to(torch_dtype(entry.wire)).to(torch_dtype(entry.dtype))]
            else:
                names = [name for name in entry.targets if name in self.local_shards.pieces]
                blocks = [view for name in names for view in self.local_shards.views(name, move.box)]
            found[move] = [digest_values(block, move.box) for block in blocks]
        numbers = iter(_numbers([value for values in found.values() for value in values]))
        return {move: tuple(islice(numbers, len(values))) for move, values in found.items()}

    def examine(self, rank_plan: RankPlan) -> Examined:
        """Digests of a source rank's blocks, and what is wrong with its values."""
        names = {entry.source for entry in rank_plan.entries}
        faults = not_finite(self.local_shards, rank_plan), blocks_apart(self.local_shards, names)
        return Examined(self.digests(rank_plan, "source"), *faults)

    def rollback(self) -> None:
        """Restore the values from before the latest commit, complete or not."""
        self.written = 0, 0
        if self._commit is not None:
            self._commit.commit.rollback()
        if self.swap_state is not None and self.swap_state.rollback() and self._before is not None:
            self._fingerprint, self.local_shards = self._before
            self._before = None

    def finalize(self) -> None:
        """Make the latest commit final, and drop the buffers that only this sync needed."""
        if self.rank_plan is not None:
            self._settle(self.rank_plan)
        if self._commit is not None:
            self._commit.commit.finalize()
        if self.swap_state is not None:
            self.swap_state.finalize()
            self._before = None
        self.clear()

    def drop_packed(self, index: int) -> None:
        """Drop a packed bucket after its last message."""
        del self.packed[index]

    def clear(self) -> None:
        """Drop the blocks of a finished or failed sync; memory that the next one fills again stays."""
        self.arrived.clear()
        self.packed.clear()
        if not all(map(is_kept, self.local_shards.devices)):
            self._staging.clear()
            self._commit = None
            if self.swap_state is not None:
                self.swap_state.forget()
        elif self.rank_plan is None or not set(self.rank_plan.routes.values()) <= _LASTING:
            self._commit = None
            if self.swap_state is not None:
                self.swap_state.drop()
        for block_store in self._block_stores.values():
            block_store.clear()

    def forget(self) -> None:
        """Give back everything that the plan needed."""
        for block_store in self._block_stores.values():
            block_store.close()
        self.rank_plan = self._commit = None
        if self.swap_state is not None:
            self.swap_state.forget()
        self.got = {}
        for kept in (self._block_stores, self._staging, self._blocks, self.packed, self.arrived, self.handles):
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
