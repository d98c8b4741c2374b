"""Batches by token budget: as many samples in a row as fit, packed into equally many micro-batches on every rank.

A step takes a run of the order that fills its packs, so the position stays a count of samples and a run
resumes exactly, under another budget or on another number of ranks too. Where a step ends is found in one pass over
its samples, each put into the fullest pack that has room; how they are divided at last evens the packs out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Any

import numpy as np

from twinkle_data.cursor import Cursor
from twinkle_data.order.steps import Part, Step
from twinkle_data.order.tails import Tail, check_batch_size
from twinkle_data.whole_number import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from twinkle_data.order.orders import Order

_FEW = 64
_AT_FIRST = 1 << 10  # samples
_AHEAD = 1 << 15


def pack(lengths: Sequence[int], packs: int, max_tokens: int) -> list[list[int]] | None:
    """Divide samples over packs of at most `max_tokens` tokens; None when this method does not make them fit.

    Longest first into the emptiest pack, which evens the packs out; where that fails, into the fullest pack
    with room, which wastes less. Within a pack, samples keep their order.

    Args:
        lengths: Tokens of each sample.
        packs: Number of packs, at least 1; some may stay empty.
        max_tokens: Tokens that a pack holds.
    """
    ranked = _longest_first(lengths)
    bins = _emptiest_first(lengths, ranked, packs, max_tokens) or _fullest_first(lengths, ranked, packs, max_tokens)
    return None if bins is None else _in_order(bins)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda sample: (-lengths[sample], sample))


def _in_order(bins: Sequence[list[int]]) -> list[list[int]]:
    """Packs by their first samples, empty ones last."""
    last = sum(map(len, bins))
    return sorted((sorted(samples) for samples in bins), key=lambda own: own or [last])


def _first_that_fit(lengths: Sequence[int], begin: int, stop: int, packs: int, max_tokens: int) -> list[list[int]]:
    """Packs of the samples from `begin` on, up to one that has no room; each goes into the fullest with room."""
    bins: list[list[int]] = [[] for _ in range(packs)]
    rooms = [max_tokens * packs + number for number in range(packs)]  # room and pack in one number, ascending
    for sample in range(stop - begin):
        length = lengths[begin + sample]
        place = bisect_left(rooms, length * packs)
        if place == packs:
            return _with_more(lengths[begin : min(stop, begin + _FEW)], bins, max_tokens) if sample < _FEW else bins
        room = rooms.pop(place)
        bins[room % packs].append(sample)
        insort(rooms, room - length * packs)
    return bins


def _with_more(lengths: Sequence[int], bins: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Where a step is few samples, dividing them anew makes room for further ones."""
    for many in range(sum(map(len, bins)) + 1, len(lengths) + 1):
        part = lengths[:many]
        found = _fullest_first(part, _longest_first(part), len(bins), max_tokens)
        if found is None:
            break
        bins = found
    return bins


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
        self.lengths = _checked(lengths, dataset_length, max_tokens)
        self._packs = data_world_size * whole_number("micro_batches", micro_batches)
        if max_tokens < 1 or micro_batches < 1:
            raise ValueError(f"max_tokens={max_tokens} and micro_batches={micro_batches} must be at least 1")
        self._shortest = int(self.lengths.min(initial=max_tokens))
        self._batch_size = batch_size
        self._max_tokens = max_tokens
        self._micro_batches = micro_batches
        self._tail: Tail = tail
        self._counted: dict[Cursor, int] = {}
        if next(self._walk(Cursor()), None) is None:
            raise ValueError(
                "the dataset is empty"
                if order.length == 0
                else f'an epoch of {order.length} samples has no full step under tail="drop"; a smaller batch_size or '
                'max_tokens, or tail="short" would do'
            )

    def settle(self, cursor: Cursor) -> Cursor:
        """The same place, with the end of an epoch said as the start of the next."""
        left = self._order.length - cursor.position
        # A full batch makes a full step: in most cases nothing is looked at.
        more = left > 0 and (self._tail != "drop" or left >= self._batch_size or any(True for _ in self._walk(cursor)))
        return cursor if more else Cursor(cursor.epoch + 1, 0)

    def steps_left(self, cursor: Cursor) -> int:
        """Steps from the cursor to the end of its epoch: they are gone through once, then remembered."""
        if cursor not in self._counted:
            begins = [Cursor(cursor.epoch, position) for position, _, _ in self._walk(cursor)]
            # Only one epoch is remembered: memory stays bounded.
            self._counted = {place: len(begins) - number for number, place in enumerate(begins)}
        return self._counted.get(cursor, 0)

    def samples_left(self, cursor: Cursor) -> int | None:
        """Samples that are left, those of a last step that is dropped among them."""
        return self._order.length - cursor.position

    def steps(self, cursor: Cursor, part: Part) -> Iterator[Step]:
        """The steps from the cursor to the end of its epoch."""
        for position, rows, fitting in self._walk(cursor):
            tokens = self.lengths[rows].tolist()
            bins = _emptiest_first(tokens, _longest_first(tokens), self._packs, self._max_tokens) or fitting
            bins = _in_order(bins)
            mine = bins
            if part.data_rank is not None:
                first = part.data_rank * self._micro_batches
                mine = bins[first : first + self._micro_batches]
            flat = [row for own in mine for row in own]
            stops = np.cumsum([len(own) for own in mine]).tolist()
            cuts = tuple(zip([0, *stops[:-1]], stops, strict=True))
            indices = rows[np.array(flat, dtype=np.int64)].tolist()
            yield Step(cursor.epoch, position, len(rows), indices, packs=cuts)

    def _walk(self, cursor: Cursor) -> Iterator[tuple[int, NDArray[np.int64], list[list[int]]]]:
        """Of each step from the cursor on: its position, its indices, and packs that they fit into."""
        position, taken = cursor.position, cursor.position  # what is known begins at `taken`
        rows, tokens = np.empty(0, dtype=np.int64), [0][:0]
        ahead = _AT_FIRST
        while position < self._order.length:
            begin, stop = position - taken, min(position - taken + self._batch_size, len(tokens))
            bins = _first_that_fit(tokens, begin, stop, self._packs, self._max_tokens)
            many = sum(map(len, bins))
            known = taken + len(tokens)
            if position + many == known < self._order.length and many < self._batch_size:
                # More may fit than are known: blocks grow, so that an epoch costs few of them.
                more = np.arange(known, min(known + ahead, self._order.length), dtype=np.int64)
                rows = np.concatenate((rows[begin:], self._order.take(cursor.epoch, more)))
                tokens, taken, ahead = self.lengths[rows].tolist(), position, min(ahead * 4, _AHEAD)
                continue
            if self._drops(position, many, tokens[begin : begin + many], bins):
                return
            yield position, rows[begin : begin + many], bins
            position += many

    def _drops(self, position: int, many: int, tokens: list[int], bins: list[list[int]]) -> bool:
        """Whether a step is the last one and ends for want of samples, under `drop`."""
        if self._tail != "drop" or position + many < self._order.length or many >= self._batch_size:
            return False
        return min(sum(tokens[row] for row in own) for own in bins) + self._shortest <= self._max_tokens


def _checked(lengths: Any, dataset_length: int, max_tokens: int) -> NDArray[np.int64]:
    given = np.asarray(lengths)
    if given.shape != (dataset_length,):
        raise ValueError(
            f"lengths= holds one number of tokens for each of {dataset_length} samples, got shape {given.shape}"
        )
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"lengths= holds whole numbers of tokens, got {given.dtype} such as {given[0]!r}")
    tokens = given.astype(np.int64)
    wrong = np.flatnonzero((tokens < 1) | (tokens > max_tokens))
    if wrong.size:
        raise ValueError(
            f"{wrong.size} of {dataset_length} samples have lengths outside [1, max_tokens={max_tokens}], the "
            f"first is sample {wrong[0]} with {tokens[wrong[0]]}; truncate or leave them out, or raise max_tokens"
        )
    return tokens
