"""The parameters of a target rank that get new memory by a sync: where they live, and where the next values go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.planning.buckets import bucket_offsets
from twinkle_ray.weights.replacement.buffer_pair import BufferPair
from twinkle_ray.weights.replacement.parameter_buffer import ParameterBuffer, owners_among
from twinkle_ray.weights.replacement.replaceable import replaceable_parameters
from twinkle_ray.weights.replacement.swap_commit import SwapCommit, Tensors, swaps_made
from twinkle_ray.weights.shards.fingerprint import Fingerprint
from twinkle_ray.weights.shards.shard import hold
from twinkle_ray.weights.transport.packing import slot_views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import Tensor
    from torch.nn import Parameter

    from twinkle_ray.weights.messages import MemoryFile
    from twinkle_ray.weights.planning.sync_plan import RankPlan
    from twinkle_ray.weights.shards.shard import Weights
    from twinkle_ray.weights.shards.specs import LocalShards

_KEPT = 2  # commits that take turns
_SHOWN = 8


@dataclass(frozen=True, slots=True, eq=False)
class _Staging:
    """Memory in which the buckets of links arrive: their bytes, and their blocks."""

    buffer: ParameterBuffer
    buffers: Mapping[int, Tensor]
    blocks: Mapping[int, Sequence[Tensor]]


class SwapState:
    """Gives the parameters of one target rank new memory, in turns.

    Attributes:
        parameters: Those that may be given new memory, by their first name.
        read_at: The number of swaps in this process before the weights were read.
    """

    def __init__(self) -> None:
        self.parameters: dict[str, list[Parameter]] = {}
        self._owners: Sequence[ParameterBuffer] = []
        self._pool = BufferPair()
        self._stagings: list[_Staging] = []
        self._staging: _Staging | None = None
        self._commits: list[SwapCommit] = []
        self._current: SwapCommit | None = None
        self.read_at = 0
        self._applied: tuple[SwapCommit, SwapCommit | None, Sequence[ParameterBuffer]] | None = None

    def read(self, weights: Weights, local_shards: LocalShards) -> None:
        """Read weights whose memory is not that of the latest commit."""
        self.parameters = replaceable_parameters(weights, local_shards)
        self._owners = _owners_of(self._owners, local_shards)
        self._commits.clear()
        self._current = None

    def begin(self) -> None:
        """Begin a sync: memory in which no parameter lives is free."""
        self._pool.begin(self._owners)
        self._staging = None

    def occupied(self) -> frozenset[MemoryFile]:
        """The memory files in which tensors live."""
        return frozenset(buffer.file for buffer in self._owners if buffer.file is not None)

    def staging(self, rank_plan: RankPlan, index: int, device: torch.device) -> Tensor:
        """The buffer in which a bucket of a link arrives."""
        return self._arena(rank_plan, device).buffers[index]

    def staged(self, index: int) -> Sequence[Tensor]:
        """The arrived blocks of a bucket of a link."""
        assert self._staging is not None, "transfer comes first"
        return self._staging.blocks[index]

    def outdated(self) -> bool:
        """Whether memory was replaced in this process since the weights were read: another sync may have done it."""
        return self.read_at != swaps_made()

    def apply(
        self,
        rank_plan: RankPlan,
        arrivals: Mapping[int, Sequence[Tensor]],
        local_shards: LocalShards,
        shared: Sequence[ParameterBuffer],
        *,
        reversible: bool,
    ) -> int:
        """Give the parameters the arrived blocks as their memory, and write all other tensors in place.

        Args:
            rank_plan: The rank's plan.
            arrivals: The arrived blocks of each bucket.
            local_shards: The tensors as they are now.
            shared: Memory of other processes in which blocks have arrived, and parameters may live.
            reversible: Have `rollback` restore the old values.

        Returns:
            The entries whose values have changed, as a set of bits.
        """
        fitting = (one for one in self._commits if one.fits(arrivals, self._owners, reversible))
        commit = next(fitting, None)
        if commit is None:
            buffers = [*shared, *([] if self._staging is None else [self._staging.buffer])]
            commit = SwapCommit(
                self.parameters, rank_plan, arrivals, local_shards, buffers, self._pool.take, reversible=reversible
            )
        self._commits = [commit, *[one for one in self._commits if one is not commit]][:_KEPT]
        self._applied = (commit, self._current, self._owners)
        changed = commit.apply(self._current)
        self._current = commit
        return changed

    def after(self, weights: Callable[[], Weights]) -> Tensors:
        """The tensors after `apply`; read again where it is the first time.

        Raises:
            WeightSyncError: If `weights()` returns other parameters than before.
        """
        assert self._current is not None, "apply comes first"
        if self._current.after is None:
            now = weights()
            local_shards = hold(now, written=True)
            wrong = self._current.elsewhere(local_shards)
            if wrong:
                raise WeightSyncError(
                    f"weights() returned {', '.join(map(repr, wrong[:_SHOWN]))} with other memory than the sync has "
                    "given it: ReplaceableWeights holds the component's own parameters, the same ones each time"
                )
            owners = _owners_of([*self._owners, *self._current.buffers], local_shards)
            self._current.after = Tensors(Fingerprint(now), local_shards, owners)
        self._owners = self._current.after.owners
        return self._current.after

    def rollback(self) -> bool:
        """Restore the memory from before the latest commit, complete or not; returns whether there was one."""
        if self._applied is None:
            return False
        commit, self._current, self._owners = self._applied
        self._applied = None
        commit.rollback()
        return True

    def finalize(self) -> None:
        """Make the latest commit final."""
        if self._applied is not None:
            self._applied[0].finalize()
            self._applied = None

    def drop(self) -> None:
        """Forget blocks that no later sync fills again."""
        self._commits.clear()
        if self._current is not None:
            self._current.release()

    def forget(self) -> None:
        """Give back the memory in which no parameter lives."""
        self._commits.clear()
        self._stagings.clear()
        self._staging = self._current = None
        self._pool.clear()

    def _arena(self, rank_plan: RankPlan, device: torch.device) -> _Staging:
        if self._staging is None:
            buckets = [bucket for index, bucket in rank_plan.buckets.items() if rank_plan.routes[index] == "link"]
            offsets, size = bucket_offsets(buckets)
            buffer = self._pool.take(size, device)
            found = next((one for one in self._stagings if one.buffer is buffer), None)
            if found is None:
                buffers = {b.index: buffer.memory[offsets[b.index] : offsets[b.index] + b.nbytes] for b in buckets}
                blocks = {bucket.index: slot_views(bucket, buffers[bucket.index]) for bucket in buckets}
                found = _Staging(buffer, buffers, blocks)
            self._stagings = [found, *[one for one in self._stagings if one is not found]][:_KEPT]
            self._staging = found
        return self._staging


def _owners_of(buffers: Sequence[ParameterBuffer], local_shards: LocalShards) -> list[ParameterBuffer]:
    tensors = [tensor for pieces in local_shards.pieces.values() for _, tensor in pieces]
    return owners_among(dict.fromkeys(buffers), tensors)
