"""The rows of a source by position: read batch by batch, kept until they are delivered."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy import Lazy
from twinkle_remote.streams.chunk_result import cut, join_rows
from twinkle_remote.streams.protocols import InformedSource, NumberedRows, ResumableSource
from twinkle_remote.values.rows import rows_of, splitter_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


@dataclass(slots=True)
class SourceBatch:
    """A batch of the source without its fillers.

    Attributes:
        value: The batch itself where it has no fillers.
        first: Position of its first row.
        rows: Its rows.
        left: Rows that are neither delivered nor given up.
        epoch: The epoch that the source tells, else the number of the pass over it.
        indices: Index in the dataset of each row; None if the source does not tell.
        state: State of the source before it was read.
        turn: Number of the pass over the source.
        turn_first: Position of the first row of that pass.
    """

    value: Any
    first: int
    rows: int
    left: int
    epoch: int
    indices: Sequence[int] | None
    state: Any
    turn: int
    turn_first: int


class RowSource:
    """Reads a source, and gives out its rows by their position in the stream.

    Args:
        source: Any iterable of values with rows; each iteration over it is an epoch.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self._iterator: Iterator[Any] | None = None
        self._batches: list[SourceBatch] = []
        self._dropped = 0  # leading entries of _batches that are used up
        self._passes = 0
        self._pass_first = 0
        self._to_skip = 0
        self._state: Any = None
        self.next_row = 0

    # reading

    def fetch(self) -> SourceBatch | None:
        """The next batch, to be kept; None at the end of the epoch, after which the next one begins."""
        if self._iterator is None:
            self._iterator = iter(self._source)
        while True:
            state = self._source_state()
            try:
                value = next(self._iterator)
            except StopIteration:
                self._end_pass()
                return None
            batch = self._batch(value, state)
            if self._to_skip < batch.rows or not self._to_skip:
                return batch
            self._to_skip -= batch.rows

    def _batch(self, value: Any, state: Any) -> SourceBatch:
        told = self._told(value)
        if told is value and isinstance(value, list) and splitter_of(type(value)) is splitter_of(list):
            value = list(value)  # what it tells of its rows goes beside them
        if not isinstance(value, Lazy):
            rows = rows_of(value, "a batch of the source")
        else:
            rows = len(value) if told is None else len(told.indices)
        if rows is None:
            raise TypeError(f"a stream's source yields values with rows, got {type(value).__name__} {value!r:.60}")
        indices = None if told is None else list(told.indices)
        if told is not None and not all(told.valid):
            value, indices = _without_fillers(value, told)
            rows = len(indices)
        epoch = self._passes if told is None else told.epoch
        return SourceBatch(value, self.next_row, rows, rows, epoch, indices, state, self._passes, self._pass_first)

    def _told(self, value: Any) -> NumberedRows | None:
        if not isinstance(value, Lazy) and isinstance(value, NumberedRows):
            return value
        return self._source.info if isinstance(self._source, InformedSource) else None

    def keep(self, batch: SourceBatch) -> SourceBatch:
        """Add a batch that was fetched to the rows."""
        if self._to_skip:  # a source without a state begins before the first row that is wanted
            skip, self._to_skip = self._to_skip, 0
            batch.value = cut(batch.value, skip, batch.rows)
            batch.indices = None if batch.indices is None else batch.indices[skip:]
            batch.rows = batch.left = batch.rows - skip
        self.next_row += batch.rows
        if batch.rows:
            self._batches.append(batch)
        return batch

    def _end_pass(self) -> None:
        self._iterator = None
        self._passes += 1
        self._pass_first = self.next_row

    # rows

    def rows(self, first: int, count: int) -> Any:
        """Rows by position; the source's own batch where they are all of it."""
        parts = []
        for batch, start, stop in self._parts(first, count):
            parts.append(batch.value if stop - start == batch.rows else cut(batch.value, start, stop))
        return join_rows(parts)

    def numbers(self, first: int, count: int) -> tuple[list[int], int]:
        """The index of each row in the dataset, and the epoch; positions where the source does not tell indices."""
        indices: list[int] = []
        epoch = self._passes
        for batch, start, stop in self._parts(first, count):
            here = range(batch.first + start - batch.turn_first, batch.first + stop - batch.turn_first)
            indices += here if batch.indices is None else batch.indices[start:stop]
            epoch = batch.epoch
        return indices, epoch

    def use(self, first: int, count: int) -> None:
        """Rows were delivered or given up; batches without rows that are left are forgotten from the front."""
        for batch, start, stop in self._parts(first, count):
            batch.left -= stop - start
        while self._dropped < len(self._batches) and not self._batches[self._dropped].left:
            self._batches[self._dropped].value = None
            self._dropped += 1
        if self._dropped * 2 > len(self._batches):
            del self._batches[: self._dropped]
            self._dropped = 0

    def _parts(self, first: int, count: int) -> Iterator[tuple[SourceBatch, int, int]]:
        index = bisect_right(self._batches, first, key=lambda batch: batch.first) - 1
        while count:
            batch = self._batches[index]
            start = first - batch.first
            stop = min(batch.rows, start + count)
            yield batch, start, stop
            first, count, index = first + stop - start, count - (stop - start), index + 1

    # the state

    def state(self) -> dict[str, Any]:
        """Where a reader begins so that it meets every row that is left."""
        if self._dropped < len(self._batches):
            oldest = self._batches[self._dropped]
            skip = oldest.first - oldest.turn_first
            return {"source": oldest.state, "row": oldest.first, "skip": skip, "epoch": oldest.turn}
        skip = self.next_row - self._pass_first
        return {"source": self._source_state(), "row": self.next_row, "skip": skip, "epoch": self._passes}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; a source without a state of its own is gone through again, and what was used skipped."""
        self.next_row = state["row"]
        self._pass_first = state["row"] - state["skip"]
        self._passes = state["epoch"]
        self._iterator = None
        self._batches.clear()
        self._dropped = 0
        if isinstance(self._source, ResumableSource):
            self._source.load_state_dict(state["source"])
        else:
            self._to_skip = state["skip"]

    def _source_state(self) -> Any:
        return self._source.state_dict() if isinstance(self._source, ResumableSource) else None


def _without_fillers(value: Any, told: NumberedRows) -> tuple[Any, list[int]]:
    """The rows of the data, and their indices."""
    kept = [row for row, valid in enumerate(told.valid) if valid]
    spans: list[list[int]] = []
    for row in kept:
        if spans and spans[-1][1] == row:
            spans[-1][1] = row + 1
        else:
            spans.append([row, row + 1])
    parts = [cut(value, start, stop) for start, stop in spans] or [cut(value, 0, 0)]
    return join_rows(parts), [told.indices[row] for row in kept]
