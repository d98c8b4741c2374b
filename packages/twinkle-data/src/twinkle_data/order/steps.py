"""The steps of a run as lists of indices: a global batch is cut from the order, then divided over data ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from twinkle_data.cursor import Cursor
from twinkle_data.order.tails import Tail, check_batch_size, rows_of_step, share, steps_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from twinkle_data.order.orders import Order

_AT_FIRST = 1 << 10  # rows: a smaller block is not faster
_AHEAD = 1 << 15


class Step(NamedTuple):
    """One shard of one global batch.

    Attributes:
        epoch: Epoch, from 0.
        position: Number of samples of the epoch before the global batch.
        rows: Samples of the global batch, fillers not counted.
        indices: Indices of the shard's rows.
        fillers: Rows of the shard that are fillers, ascending.
        packs: The rows [start, stop) of each pack; None without packing.
        source: State of an iterable source before these rows; only in the first step of a run.
    """

    epoch: int
    position: int
    rows: int
    indices: list[int]
    fillers: tuple[int, ...] = ()
    packs: tuple[tuple[int, int], ...] | None = None
    source: Any = None


@dataclass(frozen=True, slots=True)
class DataShard:
    """The rows that a process takes of each batch: one data rank's, or the global batch.

    Attributes:
        data_world_size: Number of data ranks.
        data_rank: In [0, data_world_size - 1]; None for the global batch.
    """

    data_world_size: int = 1
    data_rank: int | None = None

    @property
    def ranks(self) -> range:
        """The data ranks whose rows it takes."""
        return range(self.data_world_size) if self.data_rank is None else range(self.data_rank, self.data_rank + 1)


class StepPlan(Protocol):
    """The steps of each epoch, and the indices that each shard reads in them."""

    def normalize(self, cursor: Cursor) -> Cursor:
        """The same cursor; the end of an epoch becomes the start of the next."""

    def steps_left(self, cursor: Cursor) -> int:
        """Steps from the cursor to the end of its epoch, the same on every rank."""

    def samples_left(self, cursor: Cursor) -> int | None:
        """Samples that those steps deliver; None for a stream, which has no length."""

    def steps(self, cursor: Cursor, shard: DataShard) -> Iterator[Step]:
        """The steps from the cursor to the end of its epoch."""


class BatchPlan:
    """Steps of a fixed number of samples.

    Args:
        order: Order of the samples.
        batch_size: Samples of a global batch.
        tail: What happens to the last rows of an epoch.
    """

    def __init__(self, order: Order, batch_size: int, tail: Tail) -> None:
        check_batch_size(batch_size, 1)
        if rows_of_step(order.length, batch_size, tail) == 0:
            advice = "the dataset is empty" if order.length == 0 else 'a smaller batch_size, or tail="short" or "pad"'
            raise ValueError(
                f"an epoch of {order.length} samples has no step at batch_size={batch_size}, tail={tail!r}: "
                + (advice if order.length else "the dataset is empty")
            )
        self._order = order
        self._batch_size = batch_size
        self._tail: Tail = tail

    def normalize(self, cursor: Cursor) -> Cursor:
        """The same cursor; the end of an epoch becomes the start of the next."""
        full = self._order.length - cursor.position >= self._batch_size  # true for most steps, and cheap
        return cursor if full or self.steps_left(cursor) else Cursor(cursor.epoch + 1, 0)

    def steps_left(self, cursor: Cursor) -> int:
        """Steps from the cursor to the end of its epoch, the same on every rank."""
        return steps_left(self._order.length - cursor.position, self._batch_size, self._tail)

    def samples_left(self, cursor: Cursor) -> int | None:
        """Samples that those steps deliver."""
        return min(self.steps_left(cursor) * self._batch_size, self._order.length - cursor.position)

    def leaves_out(self, cursor: Cursor, data_world_size: int) -> bool:
        """Whether some data ranks have no row in the last step of this epoch, or of a later one."""
        rests = [(self._order.length - position) % self._batch_size for position in (cursor.position, 0)]
        return self._tail == "short" and any(0 < rest < data_world_size for rest in rests)

    def steps(self, cursor: Cursor, shard: DataShard) -> Iterator[Step]:
        """The steps from the cursor to the end of its epoch."""
        check_batch_size(self._batch_size, shard.data_world_size)
        each = self._batch_size // shard.data_world_size
        first = 0 if shard.data_rank is None else shard.data_rank * each
        width = self._batch_size if shard.data_rank is None else each
        position, ahead = cursor.position, max(_AT_FIRST // width, 1)
        while self._order.length - position >= self._batch_size:
            # Blocks grow, so the first batch comes at once and an epoch takes few calls.
            many = min(ahead, (self._order.length - position) // self._batch_size)
            begins = position + np.arange(many, dtype=np.int64) * self._batch_size
            wanted = (begins + first)[:, None] + np.arange(width, dtype=np.int64)
            rows = self._order.take(cursor.epoch, wanted.ravel()).reshape(many, width)
            for indices in rows.tolist():
                yield Step(cursor.epoch, position, self._batch_size, indices)
                position += self._batch_size
            ahead = min(ahead * 4, max(_AHEAD // width, 1))
        rest = rows_of_step(self._order.length - position, self._batch_size, self._tail)
        if rest:
            yield self._last(cursor.epoch, position, rest, shard)

    def _last(self, epoch: int, position: int, rows: int, shard: DataShard) -> Step:
        offsets: list[int] = []
        fillers: list[int] = []
        for rank in shard.ranks:
            own = share(rows, shard.data_world_size, rank, self._tail)
            offsets += range(own.start, own.stop)
            fillers += range(len(offsets), len(offsets) + len(own.fillers))
            offsets += own.fillers
        wanted: NDArray[np.int64] = position + np.array(offsets, dtype=np.int64)
        return Step(epoch, position, rows, self._order.take(epoch, wanted).tolist(), tuple(fillers))
