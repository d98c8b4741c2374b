"""The steps of an epoch: a global batch is cut from the order first, and divided over the data ranks last.

So the mesh, the batch size and the number of loader processes never change which sample comes at which position, and
every data rank takes equally many steps. The plan needs no communication: each rank computes the whole of it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapreplace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from twinkle_data.order import Order

_BLOCK = 1 << 13  # positions whose indices are computed at a time


class Step(NamedTuple):
    """One rank's part of one global batch."""

    epoch: int
    position: int  # samples of the epoch before the global batch
    rows: int  # samples of the global batch
    indices: list[int]  # index in the dataset of each row of this rank
    padding: int = 0  # rows at the end that repeat other rows, and are masked
    packs: tuple[int, ...] = ()  # rows of each pack; empty without packing
    compared: int | None = (
        None  # a sample whose digest all ranks compare, in the first step of a loader on several ranks
    )


def share_of(rows: int, world: int, rank: int) -> tuple[range, int]:
    """A data rank's rows of a global batch, and the masked rows that fill up its share to ceil(rows / world)."""
    each = -(-rows // world)
    own = range(min(rank * each, rows), min((rank + 1) * each, rows))
    return own, each - len(own)


class Plan:
    """The steps of each epoch.

    Args:
        order: Order of the samples.
        batch_size: Samples of a global batch, a multiple of `world`; with packing the most samples of a step.
        world: Number of data ranks.
        drop_last: Leave out the last samples of an epoch that do not fill a batch (with packing: that are fewer than
            the data ranks). Otherwise the last batch is smaller, and `share_of` fills up the ranks' shares.
        packing: Tokens of each sample, and the most tokens of a pack, of which each data rank has one in each step.
    """

    def __init__(
        self,
        order: Order,
        batch_size: int,
        world: int,
        *,
        drop_last: bool,
        packing: tuple[NDArray[np.int64], int] | None = None,
    ) -> None:
        self.order, self.batch_size, self.world = order, batch_size, world
        self._least = 1 if not drop_last else world if packing else batch_size
        self._packing = packing

    def has_step(self, position: int) -> bool:
        """Whether a position is before a step of its epoch."""
        return self.order.length - position >= self._least

    def left(self, epoch: int, position: int) -> int:
        """The steps from a position to the end of the epoch, the same on every rank; packs are counted one by one."""
        if self._packing is not None:
            return sum(1 for _ in self.steps(epoch, position, None))
        full, rest = divmod(self.order.length - position, self.batch_size)
        return full + (0 < rest >= self._least)

    def steps(self, epoch: int, position: int, rank: int | None) -> Iterator[Step]:
        """The steps of a data rank from a position to the end of the epoch; global batches for the rank None."""
        length, begin, block = self.order.length, position, np.empty(0, dtype=np.int64)
        while self.has_step(position):
            rows = min(self.batch_size, length - position)
            if position - begin + rows > len(block):
                begin, block = position, self.order.block(epoch, position, min(position + max(rows, _BLOCK), length))
            chosen = block[position - begin : position - begin + rows]
            if self._packing is None:
                step = self._divided(epoch, position, chosen.tolist(), rank)
            else:
                step = self._packed(epoch, position, chosen, rank)
            yield step
            position += step.rows

    def _divided(self, epoch: int, position: int, indices: list[int], rank: int | None) -> Step:
        if rank is None:
            return Step(epoch, position, len(indices), indices)
        own, padding = share_of(len(indices), self.world, rank)
        filled = indices[own.start : own.stop] + [indices[-1]] * padding
        return Step(epoch, position, len(indices), filled, padding)

    def _packed(self, epoch: int, position: int, indices: NDArray[np.int64], rank: int | None) -> Step:
        assert self._packing is not None
        tokens, budget = self._packing
        packs = packed(tokens[indices].tolist(), self.world, budget)
        rows = sum(map(len, packs))
        mine = packs if rank is None else packs[rank : rank + 1]
        flat = [int(indices[row]) for pack in mine for row in pack]
        if rank is not None and not flat:  # fewer samples than ranks are left: a masked one for this rank
            return Step(epoch, position, rows, [int(indices[rows - 1])], 1, (1,))
        return Step(epoch, position, rows, flat, packs=tuple(map(len, mine)))


def packed(tokens: Sequence[int], packs: int, budget: int) -> list[list[int]]:
    """The rows of each pack: of as many samples, from the first on, as fit.

    Each goes into the fullest pack with room for it. Then the packs are made even, the longest sample first into the
    emptiest pack, if they fit so as well.
    """
    best: list[list[int]] = [[] for _ in range(packs)]
    even: list[list[int]] = [[] for _ in range(packs)]
    rooms = [(budget, number) for number in range(packs)]
    for row, length in enumerate(tokens):
        slot = bisect_left(rooms, (length, -1))
        if slot == packs:
            break
        room, number = rooms.pop(slot)
        best[number].append(row)
        insort(rooms, (room - length, number))
    loads = [(0, number) for number in range(packs)]
    for row in sorted(range(sum(map(len, best))), key=tokens.__getitem__, reverse=True):
        load, number = loads[0]
        if load + tokens[row] > budget:
            return best
        even[number].append(row)
        heapreplace(loads, (load + tokens[row], number))
    return [sorted(pack) for pack in even]


def tokens_of(lengths: object, length: int, max_tokens: int) -> NDArray[np.int64]:
    """The tokens of each sample, each in [1, max_tokens]; a `ValueError` names the first that is not."""
    tokens = np.asarray(lengths, dtype=np.int64)
    wrong = np.flatnonzero((tokens < 1) | (tokens > max_tokens))
    if tokens.shape != (length,) or wrong.size:
        why = f"sample {wrong[0]} has {tokens[wrong[0]]}" if wrong.size else f"got an array {tokens.shape}"
        raise ValueError(
            f"max_tokens={max_tokens} needs 1 to {max_tokens} tokens for each of {length} samples, and {why} "
            f"({wrong.size} such samples): leave them out, cut them, or raise max_tokens"
        )
    return tokens


def check_batch_size(batch_size: int, world: int) -> None:
    """Refuse a batch that does not divide over the data ranks, with the sizes that do."""
    if batch_size < 1 or batch_size % world:
        low = max(batch_size // world, 1) * world
        raise ValueError(
            f"batch_size={batch_size} is global, so it must be a positive multiple of the {world} data ranks; "
            f"use {low} or {low + world}"
        )
