"""The functions that run on the workers: describe, stage_out, stage_in, apply, close.

A version changes nothing until `apply`, which stands in the queue of a target rank between two of its calls.
`describe` and `stage_in` of a target run beside its methods; all else runs in turn with the methods. The state between
the calls is kept by process: a sync's ranks in one process share its messages.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

import torch

from twinkle_ray.weights.check import block_hash, check_arrival
from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.state import Rank, RankAddress, Report, StagedOut, StageOrder
from twinkle_ray.weights.transport import store
from twinkle_ray.weights.transport.messages import Message
from twinkle_ray.weights.transport.packing import copy_all, empty_parts, packed, to_host
from twinkle_remote.backends.support import active, between_awaits, running_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from twinkle_ray.weights.shards import Weights
    from twinkle_ray.weights.transport.messages import MessageGroup

_log = logging.getLogger("twinkle.ray")
_LOCK = threading.Lock()
_RANKS: dict[RankAddress, Rank] = {}
_GROUPS: dict[str, tuple[object, MessageGroup]] = {}
"""The group of this process for the messages of each sync, with the meeting at which it was made."""
_TALKING = threading.Lock()  # held while this process exchanges messages


class HasWeights(Protocol):
    """A component that takes part in a weight sync.

    Its method `on_weights(version)` is called if there is one. What a method `weight_metadata()` returns, by name, is
    what its weights stand on, such as the base of adapters: a sync refuses sides whose entries of one name differ.
    """

    def weights(self) -> Weights:
        """This rank's tensors by name."""


def rank_at(address: RankAddress) -> Rank:
    """The state of a rank of this process, made on first use."""
    with _LOCK:
        return _RANKS.setdefault(address, Rank(address))


def describe(instance: HasWeights, address: RankAddress) -> Report:
    """Read the component's weights, and report the shards of this rank."""
    rank = rank_at(address)
    with rank.lock, torch.no_grad():
        rank.read(instance)
        return rank.report(instance)


def stage_out(instance: HasWeights, address: RankAddress, order: StageOrder) -> StagedOut | Report:
    """Stage a source rank's blocks; what the component does later does not change them.

    Over messages the blocks stay where they are until `stage_in` sends them, before the sync returns.

    Returns:
        What is staged; a new report if the rank has changed, and has staged nothing.
    """
    rank = rank_at(address)
    with torch.no_grad():
        rank.read(instance)
        if not rank.follows(order):
            return rank.report(instance)
        part = rank.part
        assert part is not None
        hashes = rank.hashed() if order.hashed else {}
        store.drop_here(address.sync, order.version)
        rank.outgoing.clear()
        handles: dict[int, object] = {}
        looked: list[Tensor] = []
        for index, transfer in part.transfers.items():
            blocks = rank.blocks(index)
            looked += blocks
            if callable(part.convert):
                blocks = [rank.converted(move, block) for move, block in zip(transfer.moves, blocks, strict=True)]
            route = part.routes[index]
            parts = packed(rank.slots_of(index), blocks, own=route == "process")
            if route == "process":
                store.put_here(address.sync, order.version, index, parts, len(transfer.targets))
            elif route == "messages":
                rank.outgoing[index] = parts
            else:
                if parts[0].device.type == "cuda":
                    parts = rank.pinned[index] = to_host(parts, rank.pinned.get(index))
                handles[index] = store.put(parts)
        rank.synchronize()
        moves = [move for transfer in part.transfers.values() for move in transfer.moves]
        unchanged = rank.changes.same(looked, [hashes[move] for move in moves] if order.hashed else None)
        here = running_worker()
        if here is not None:  # without methods in between nothing is expected to change
            unchanged = unchanged and here.methods != rank.methods
            rank.methods = here.methods
    return StagedOut(handles, hashes, unchanged)


def stage_in(instance: HasWeights, address: RankAddress, order: StageOrder) -> Report | None:
    """Get a version's blocks, and keep them for `apply`; the component's weights stay as they are.

    Over NCCL it is called on the ranks of both sides, and sends and receives all messages of their process.

    Returns:
        A new report if a target's rank has changed, or has no plan, and has staged nothing; None otherwise.

    Raises:
        WeightSyncError: Other values have arrived than the source has.
    """
    rank = rank_at(address)
    if order.meeting is not None:
        exchange(address, order)
    if address.side == "source":
        return None
    with rank.lock, torch.no_grad():
        rank.read(instance)
        if not rank.follows(order):
            return rank.report(instance)
        part = rank.part
        assert part is not None
    parts = {index: _parts(rank, index, order) for index in part.transfers}
    version, blocks = rank.arrived(parts)
    if order.hashes is not None:
        entries = part.entries
        check_arrival(
            {move: block_hash(block) for move, block in blocks.items()},
            order.hashes,
            lambda entry: repr(entries[entry].targets[0]),
            address.rank,
        )
    with rank.lock:
        for number in [number for number in rank.staged if number not in order.waiting]:
            del rank.staged[number]
        rank.staged[order.version] = version
    return None


def _parts(rank: Rank, index: int, order: StageOrder) -> Sequence[Tensor]:
    assert rank.part is not None
    route = rank.part.routes[index]
    if route == "process":
        return store.get_here(rank.address.sync, order.version, index)
    if route == "messages":
        return rank.received.pop((order.version, index))
    return store.get(order.handles[index], order.timeout)


def apply(instance: HasWeights, address: RankAddress, version: int) -> None:
    """Copy a staged version into the component's weights, and call its `on_weights`.

    It runs between two calls, and between two awaits of coroutines. A rank whose worker was started again since the
    version was staged has nothing staged, and gets the version again. One that cannot apply it runs nothing any more.
    """
    rank = rank_at(address)

    def write() -> None:
        with rank.lock, torch.no_grad():
            staged = rank.staged.pop(version, None)
            if staged is None:
                return
            rank.read(instance)
            if staged.specs_digest != rank.local_shards.digest:
                raise WeightSyncError("weights() returns other shards than when the version was staged")
            pairs = [
                (view, block)
                for names, box, block in staged.writes
                for name in names
                for view in rank.local_shards.views(name, box)
            ]
            copy_all([view for view, _ in pairs], [block for _, block in pairs])
            rank.synchronize()
        hook = getattr(instance, "on_weights", None)
        if hook is not None:
            hook(version)

    try:
        between_awaits(write)
    except Exception as error:
        _log.exception("version %d of the weights was not applied on %s", version, address)
        worker, runtime = running_worker(), active()
        if worker is not None and not (runtime is not None and runtime.backend.in_process):
            worker.end(f"it could not apply version {version} of its weights: {type(error).__name__}: {error}")
        raise


def close(instance: HasWeights, address: RankAddress) -> None:
    """Give back everything that this rank keeps for a sync."""
    with _LOCK:
        _RANKS.pop(address, None)
        left = any(one.sync == address.sync for one in _RANKS)
        group = None if left else _GROUPS.pop(address.sync, None)
    if not left:
        store.drop_here(address.sync)
    if group is not None:
        group[1].abort()


def exchange(address: RankAddress, order: StageOrder, launched: MessageGroup | None = None) -> None:
    """Send and receive all messages of this process for one version, once.

    Args:
        address: Of a rank of this process; where it has ranks of both sides, of the target's.
        order: For this rank. It has the rank's part of the plan, which says what arrives.
        launched: The group of a launched program; None makes one over NCCL.

    Raises:
        WeightSyncError: A message was not through, because a peer failed or the time is over.
    """
    sync, own = address.sync, rank_at(address)
    with _TALKING, torch.no_grad():
        own.follows(order)
        with _LOCK:
            ranks = [rank for one, rank in _RANKS.items() if one.sync == sync]
        messages = _messages(ranks, order.version)
        if not messages:
            return
        group = launched or _group(sync, order, ranks)
        try:
            group.run(messages)
        except BaseException as error:
            group.abort()
            _GROUPS.pop(sync, None)
            for rank in ranks:
                rank.received.clear()
            if isinstance(error, RuntimeError):
                raise WeightSyncError(f"messages with other ranks did not get through: {error}") from error
            raise
        for rank in ranks:
            rank.outgoing.clear()


def _group(sync: str, order: StageOrder, ranks: Sequence[Rank]) -> MessageGroup:
    from twinkle_ray.weights.transport.nccl import NcclGroup  # CUDA alone needs it

    assert order.meeting is not None
    known = _GROUPS.get(sync)
    if known is not None and known[0] == order.meeting:
        return known[1]
    if known is not None:
        known[1].abort()
    (process,) = {rank.part.process for rank in ranks if rank.part is not None}
    group = NcclGroup(order.meeting, process, ranks[0].device())
    _GROUPS[sync] = order.meeting, group
    return group


def _messages(ranks: Sequence[Rank], version: int) -> list[Message]:
    """The messages of the ranks of this process, in the order of their transfers, as both ends have them."""
    found: list[tuple[int, int, int, bool, Tensor]] = []
    for rank in ranks:
        part = rank.part
        if part is None:
            continue
        for index, (sender, receivers) in part.ends.items():
            if rank.address.side == "source":
                parts, peers = rank.outgoing.get(index, ()), receivers
            elif (version, index) not in rank.received:
                parts = rank.received[version, index] = empty_parts(rank.slots_of(index), rank.device())
                peers = (sender,)
            else:
                continue
            receives = rank.address.side == "target"
            found += [
                (index, number, peer, receives, tensor)
                for number, tensor in enumerate(parts)
                for peer in peers
                if tensor.numel()
            ]
    counts: dict[tuple[int, bool], int] = {}
    messages: list[Message] = []
    for _, _, peer, receives, tensor in sorted(found, key=lambda one: one[:4]):
        tag = counts[peer, receives] = counts.get((peer, receives), 0) + 1
        messages.append(Message(peer, tensor, receives, tag))
    return messages
