"""Batches by a token budget: a step takes the next samples that fit into its packs.

Every rank has the same number of packs. A step takes consecutive samples of the order, so the position stays a count of
samples, and a run resumes exactly, also with another budget or another number of ranks. The first sample of a step
determines its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from twinkle_data.cursor import Cursor
from twinkle_data.option_checks import whole_number
from twinkle_data.order.bin_packing import bounds, most_rows, pack
from twinkle_data.order.steps import DataShard, Step
from twinkle_data.order.tails import Tail, check_batch_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from twinkle_data.order.orders import Order

_AT_FIRST: Final = 1 << 8  # samples: steps are cut out of blocks of the order that grow
_AHEAD: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Packing:
    """Options of batches by tokens: a batch is a list of packs, and each pack is a `Batch`.

    Attributes:
        lengths: Tokens of each sample of the dataset, each in [1, max_tokens].
        max_tokens: The most tokens that a pack holds, at least 1.
        micro_batches: Packs of each data rank in every step, at least 1.
    """

    lengths: Sequence[int] | NDArray[np.int64]
    max_tokens: int
    micro_batches: int = 1

    def __post_init__(self) -> None:
        for name in ("max_tokens", "micro_batches"):
            number = whole_number(name, getattr(self, name))
            if number < 1:
                raise ValueError(f"{name}={number} must be at least 1")
            object.__setattr__(self, name, number)


class PackPlan:
    """The steps of batches by tokens.

    Args:
        order: Order of the samples.
        packing: The lengths and the budget.
        dataset_length: Samples of the dataset.
        batch_size: The most samples that a global batch has.
        data_world_size: Number of data ranks.
        tail: `drop` leaves out a last step that is not full; otherwise some of its packs may be empty.
    """

    def __init__(
        self,
        order: Order,
        packing: Packing,
        *,
        dataset_length: int,
        batch_size: int,
        data_world_size: int,
        tail: Tail,
    ) -> None:
        check_batch_size(batch_size, 1)
        max_tokens, micro_batches = packing.max_tokens, packing.micro_batches
        self._order = order
        self.lengths = _checked(packing.lengths, dataset_length, max_tokens)
        self._packs = data_world_size * micro_batches
        self._shortest = int(self.lengths.min(initial=max_tokens))
        self._batch_size = batch_size
        self._max_tokens = max_tokens
        self._micro_batches = micro_batches
        self._tail: Tail = tail
        self._counted: dict[Cursor, int] = {}
        if next(self._cuts(Cursor()), None) is None:
            raise ValueError(
                "the dataset is empty"
                if order.length == 0
                else f'an epoch of {order.length} samples has no full step under tail="drop"; use a smaller '
                'batch_size or max_tokens, or tail="short"'
            )

    def normalize(self, cursor: Cursor) -> Cursor:
        """The same cursor; the end of an epoch becomes the start of the next."""
        left = self._order.length - cursor.position
        # As many samples as a full batch are always a full step, so most calls cut nothing.
        more = left > 0 and (self._tail != "drop" or left >= self._batch_size or any(True for _ in self._cuts(cursor)))
        return cursor if more else Cursor(cursor.epoch + 1, 0)

    def steps_left(self, cursor: Cursor) -> int:
        """Steps from the cursor to the end of its epoch; the first call counts them, later ones remember."""
        if cursor not in self._counted:
            begins = [Cursor(cursor.epoch, position) for position, _ in self._cuts(cursor)]
            # Only one epoch is remembered: memory stays bounded.
            self._counted = {begin: len(begins) - number for number, begin in enumerate(begins)}
        return self._counted.get(cursor, 0)

    def samples_left(self, cursor: Cursor) -> int | None:
        """Samples that are left, with those of a last step that is dropped."""
        return self._order.length - cursor.position

    def steps(self, cursor: Cursor, shard: DataShard) -> Iterator[Step]:
        """The steps from the cursor to the end of its epoch."""
        for position, rows in self._cuts(cursor):
            mine = self._packed(rows)
            if shard.data_rank is not None:
                first = shard.data_rank * self._micro_batches
                mine = mine[first : first + self._micro_batches]
            flat = [row for own in mine for row in own]
            stops = np.cumsum([len(own) for own in mine]).tolist()
            cuts = tuple(zip([0, *stops[:-1]], stops, strict=True))
            indices = rows[np.array(flat, dtype=np.int64)].tolist()
            yield Step(cursor.epoch, position, len(rows), indices, packs=cuts)

    def _cuts(self, cursor: Cursor) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """The position and the indices of each step from the cursor to the end of its epoch."""
        position, ahead, length = cursor.position, _AT_FIRST, self._order.length
        while position < length:
            stop = min(position + ahead, length)
            block = self._order.take(cursor.epoch, np.arange(position, stop, dtype=np.int64))
            tokens = self.lengths[block]
            at_most = bounds(tokens, self._packs, self._max_tokens)
            start = 0
            while start < len(block):
                many = min(at_most[start], self._batch_size)
                if start + many == len(block) and stop < length and many < self._batch_size:
                    break  # more may fit than this block holds
                many = most_rows(tokens[start : start + many], self._packs, self._max_tokens)
                rows = block[start : start + many]
                if position + start + many == length and self._is_dropped(rows):
                    return
                yield position + start, rows
                start += many
            position += start
            ahead = min(ahead * 4, _AHEAD) if start else ahead * 4

    def _packed(self, rows: NDArray[np.int64]) -> list[list[int]]:
        bins = pack(self.lengths[rows], self._packs, self._max_tokens)
        assert bins is not None, "a step is cut where its rows fit"
        return bins

    def _is_dropped(self, rows: NDArray[np.int64]) -> bool:
        """Whether the last step of an epoch is left out, because samples do not fill it."""
        if self._tail != "drop" or len(rows) >= self._batch_size:
            return False
        emptiest = min(int(self.lengths[rows[own]].sum()) for own in self._packed(rows))
        return emptiest + self._shortest <= self._max_tokens


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
