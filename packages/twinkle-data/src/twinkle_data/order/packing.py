"""Batches by token budget: as many samples in a row as fit, packed into equally many micro-batches on every rank.

A step takes a run of the order that fills its packs, so the position stays a count of samples and a run
resumes exactly, under another budget or on another number of ranks too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

import numpy as np

from twinkle_data.cursor import Cursor
from twinkle_data.order.steps import Part, Step
from twinkle_data.order.tails import Tail, check_batch_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from twinkle_data.order.orders import Order


def pack(lengths: Sequence[int], packs: int, max_tokens: int) -> list[list[int]] | None:
    """Divide samples over packs of at most `max_tokens` tokens; None when this method does not make them fit.

    Longest first into the emptiest pack, which evens the packs out; where that fails, into the fullest pack
    with room, which wastes less. Within a pack, samples keep their order.

    Args:
        lengths: Tokens of each sample.
        packs: Number of packs, at least 1; some may stay empty.
        max_tokens: Tokens that a pack holds.
    """
    ranked = sorted(range(len(lengths)), key=lambda sample: (-lengths[sample], sample))
    bins = _emptiest_first(lengths, ranked, packs, max_tokens) or _fullest_first(lengths, ranked, packs, max_tokens)
    return (
        None if bins is None else sorted((sorted(samples) for samples in bins), key=lambda own: own or [len(lengths)])
    )


def _emptiest_first(
    lengths: Sequence[int], ranked: Sequence[int], packs: int, max_tokens: int
) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(packs)]
    loads = [(0, number) for number in range(packs)]
    heapify(loads)
    for sample in ranked:
        load, number = loads[0]
        if load + lengths[sample] > max_tokens:
            return None
        bins[number].append(sample)
        heapreplace(loads, (load + lengths[sample], number))
    return bins


def _fullest_first(
    lengths: Sequence[int], ranked: Sequence[int], packs: int, max_tokens: int
) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(packs)]
    rooms = [(max_tokens, number) for number in range(packs)]
    for sample in ranked:
        place = bisect_left(rooms, (lengths[sample], -1))
        if place == packs:
            return None
        room, number = rooms.pop(place)
        bins[number].append(sample)
        insort(rooms, (room - lengths[sample], number))
    return bins


class PackPlan:
    """Steps of a number of tokens.

    Args:
        order: Order of the samples.
        lengths: Tokens of each sample of the dataset, each in [1, max_tokens].
        batch_size: Samples that a global batch has at most.
        max_tokens: Tokens that a pack holds at most.
        micro_batches: Packs of each data rank in every step.
        data_world_size: Number of data ranks.
        tail: `drop` leaves out a last step that ends for want of samples; otherwise some of its packs may be
            empty.
    """

    def __init__(
        self,
        order: Order,
        lengths: Sequence[int] | NDArray[np.int64],
        *,
        dataset_length: int,
        batch_size: int,
        max_tokens: int,
        micro_batches: int,
        data_world_size: int,
        tail: Tail,
    ) -> None:
        check_batch_size(batch_size, 1)
        self._order = order
        self._lengths = np.asarray(lengths, dtype=np.int64)
        if max_tokens < 1 or micro_batches < 1:
            raise ValueError(f"max_tokens={max_tokens} and micro_batches={micro_batches} must be at least 1")
        if self._lengths.shape != (dataset_length,):
            raise ValueError(
                f"lengths= holds one number of tokens for each of {dataset_length} samples, got shape "
                f"{self._lengths.shape}"
            )
        wrong = np.flatnonzero((self._lengths < 1) | (self._lengths > max_tokens))
        if wrong.size:
            raise ValueError(
                f"{wrong.size} of {dataset_length} samples have lengths outside [1, max_tokens={max_tokens}], the "
                f"first is sample {wrong[0]} with {self._lengths[wrong[0]]}; truncate or leave them out, or raise "
                "max_tokens"
            )
        self._shortest = int(self._lengths.min(initial=max_tokens))
        # No step can hold more rows than this, so no more are looked at.
        most = data_world_size * micro_batches * max_tokens // self._shortest
        self._batch_size = batch_size
        self._window = min(batch_size, most + 1)
        self._max_tokens = max_tokens
        self._micro_batches = micro_batches
        self._world = data_world_size
        self._tail: Tail = tail
        self._counted: dict[Cursor, int] = {}
        if self._next(Cursor()) is None:
            raise ValueError(
                f'an epoch of {order.length} samples has no full step under tail="drop"; a smaller batch_size or '
                'max_tokens, or tail="short" would do'
            )

    def settle(self, cursor: Cursor) -> Cursor:
        """The same place, with the end of an epoch said as the start of the next."""
        return cursor if self._next(cursor) else Cursor(cursor.epoch + 1, 0)

    def steps_left(self, cursor: Cursor) -> int:
        """Steps from the cursor to the end of its epoch: they are gone through once, then remembered."""
        if cursor not in self._counted:
            path = [cursor]
            while (found := self._next(path[-1])) is not None:
                path.append(Cursor(cursor.epoch, path[-1].position + len(found[0])))
            # Only one epoch is remembered: memory stays bounded.
            self._counted = {place: len(path) - 1 - number for number, place in enumerate(path)}
        return self._counted[cursor]

    def samples_left(self, cursor: Cursor) -> int | None:
        """Samples that are left, those of a last step that is dropped among them."""
        return self._order.length - cursor.position

    def steps(self, cursor: Cursor, part: Part) -> Iterator[Step]:
        """The steps from the cursor to the end of its epoch."""
        while (found := self._next(cursor)) is not None:
            rows, bins = found
            mine = bins
            if part.data_rank is not None:
                first = part.data_rank * self._micro_batches
                mine = bins[first : first + self._micro_batches]
            flat = [row for own in mine for row in own]
            stops = np.cumsum([len(own) for own in mine]).tolist()
            cuts = tuple(zip([0, *stops[:-1]], stops, strict=True))
            indices = rows[np.array(flat, dtype=np.int64)].tolist()
            yield Step(cursor.epoch, cursor.position, len(rows), indices, packs=cuts)
            cursor = Cursor(cursor.epoch, cursor.position + len(rows))

    def _next(self, cursor: Cursor) -> tuple[NDArray[np.int64], list[list[int]]] | None:
        """The indices of the next step and their packs; None at the end of the epoch."""
        stop = min(cursor.position + self._window, self._order.length)
        if stop <= cursor.position:
            return None
        rows = self._order.take(cursor.epoch, np.arange(cursor.position, stop, dtype=np.int64))
        tokens = self._lengths[rows]
        packs = self._world * self._micro_batches
        many = int(np.searchsorted(np.cumsum(tokens), packs * self._max_tokens, side="right"))
        while True:
            bins = pack(tokens[:many].tolist(), packs, self._max_tokens)
            if bins is not None:
                break
            many -= max(1, many // 64)
        if self._tail == "drop" and cursor.position + many == self._order.length and many < self._batch_size:
            loads = [int(tokens[own].sum()) for own in bins]
            if min(loads) + self._shortest <= self._max_tokens:
                return None
        return rows[:many], bins
