"""The rows of a source by position: read batch by batch, kept until they are delivered."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy_values.lazy import Lazy, as_now
from twinkle_remote.streams.chunks.chunk_result import cut, join_rows
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
        epoch: The epoch that the source reports, else the number of the pass over it.
        indices: Index in the dataset of each row; None if the source does not report it.
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


_readers: weakref.WeakSet[RowSource] = weakref.WeakSet()


def is_read_by_a_stream(source: object) -> bool:
    """Whether a stream that exists reads a source: then its state, and not the source's, has what was delivered."""
    return any(reader.reads(source) for reader in list(_readers))


class RowSource:
    """Reads a source, and gives out its rows by their position in the stream.

    What is interrupted at any step, by Ctrl-C or an error of the source, is done once more: what was read is kept by
    one assignment, and a read that gave nothing is begun again from the source's state before it.

    Args:
        source: Any iterable of values with rows; each iteration over it is an epoch.
        copies: Rows are kept while the source is read on, so that they are copied: it may write to them again.
    """

    def __init__(self, source: Iterable[Any], *, copies: bool = False) -> None:
        self._source = source
        self._copies = copies
        self._iterator: Iterator[Any] | None = None
        self._batches: list[SourceBatch] = []
        self._passes = 0
        self._pass_first = 0
        self._to_skip = 0
        self._reading: tuple[Any] | None = None  # the source's state before the batch that is read and not kept
        self._given: list[Any] = []  # that batch
        self._skipped = 0  # rows of it that were not wanted
        self._at_end = False
        self.next_row = 0
        _readers.add(self)

    def reads(self, source: object) -> bool:
        """Whether it has read from a source, and not to the end."""
        return source is self._source and (bool(self._batches) or self._iterator is not None)

    # reading

    def begin_pass(self) -> None:
        """Read on after the end of an epoch."""
        self._at_end = False

    def fetch(self) -> SourceBatch | None:
        """The next batch, the same one until it is kept; None at the end of the epoch, until the next one is begun.

        Raises:
            ValueError: The source is an iterator that has ended by an error, so that its next row is not known.
        """
        while not self._at_end:
            if not self._has_read():
                self._end_pass()
                return None
            batch = self._batch(self._given[0])
            if batch.rows or not self._to_skip:
                return batch
            skipped = self._to_skip - self._skipped
            self._to_skip, self._reading, self._given = skipped, None, []
        return None

    def _has_read(self) -> bool:
        """Have the source give a batch, unless it has; False at its end."""
        if self._given:
            return True
        again = self._reading
        if again is not None:
            self._go_back(*again)
        if self._iterator is None:
            self._iterator = iter(self._source)
        self._reading = (self._source_state(),)
        self._given.extend(islice(self._iterator, 1))  # in one step: no signal comes between
        if not self._given and again is not None and self._iterator is self._source:
            raise ValueError(
                "the stream's source is an iterator that has ended by an error, and its next row is not known: give "
                "the stream an iterable that can be gone through again, or one with state_dict and load_state_dict"
            )
        return bool(self._given)

    def _go_back(self, state: Any) -> None:
        """Begin again where reading was interrupted."""
        if isinstance(self._source, ResumableSource):
            self._source.load_state_dict(state)
            self._iterator = None
        elif self._iterator is not self._source:
            self._iterator, self._to_skip = None, self.next_row - self._pass_first

    def _batch(self, value: Any) -> SourceBatch:
        numbered = self._numbered(value)
        if numbered is value and isinstance(value, list) and splitter_of(type(value)) is splitter_of(list):
            value = list(value)  # the info of its rows is kept next to them
        if not isinstance(value, Lazy):
            rows = rows_of(value, "a batch of the source")
        else:
            rows = len(value) if numbered is None else len(numbered.indices)
        if rows is None:
            raise TypeError(f"a stream's source yields values with rows, got {type(value).__name__} {value!r:.60}")
        indices = None if numbered is None else list(numbered.indices)
        if numbered is not None and not all(numbered.valid):
            value, indices = _without_fillers(value, numbered)
            rows = len(indices)
        self._skipped = skip = min(self._to_skip, rows)
        if skip:  # a source without a state begins before the first row that is wanted
            value, rows = cut(value, skip, rows) if skip < rows else None, rows - skip
            indices = None if indices is None else indices[skip:]
        epoch = self._passes if numbered is None else numbered.epoch
        state = None if self._reading is None else self._reading[0]
        if self._copies:
            value = as_now(value)
        return SourceBatch(value, self.next_row, rows, rows, epoch, indices, state, self._passes, self._pass_first)

    def _numbered(self, value: Any) -> NumberedRows | None:
        if not isinstance(value, Lazy) and isinstance(value, NumberedRows):
            return value
        return self._source.info if isinstance(self._source, InformedSource) else None

    def keep(self, batch: SourceBatch) -> None:
        """Add the batch that was fetched to the rows."""
        after, batches = self.next_row + batch.rows, [*self._batches, batch] if batch.rows else self._batches
        self.next_row, self._batches, self._to_skip, self._reading, self._given = after, batches, 0, None, []

    def _end_pass(self) -> None:
        passes = self._passes + 1
        self._iterator, self._passes, self._pass_first, self._reading, self._at_end = (
            None,
            passes,
            self.next_row,
            None,
            True,
        )

    # rows

    def rows(self, first: int, count: int) -> Any:
        """Rows by position; the source's own batch where they are all of it."""
        parts = []
        for batch, start, stop in self._parts(first, count):
            parts.append(batch.value if stop - start == batch.rows else cut(batch.value, start, stop))
        return join_rows(parts)

    def numbers(self, first: int, count: int) -> tuple[list[int], int]:
        """The index of each row in the dataset, and the epoch; positions where the source does not report indices."""
        indices: list[int] = []
        epoch = self._passes
        for batch, start, stop in self._parts(first, count):
            here = range(batch.first + start - batch.turn_first, batch.first + stop - batch.turn_first)
            indices += here if batch.indices is None else batch.indices[start:stop]
            epoch = batch.epoch
        return indices, epoch

    def use(self, first: int, count: int) -> None:
        """Rows were delivered or given up; batches without rows that are left are forgotten from the front.

        It is not to be interrupted, other than `use_before`.
        """
        for batch, start, stop in self._parts(first, count):
            batch.left -= stop - start
        self._forget(next((n for n, batch in enumerate(self._batches) if batch.left), len(self._batches)))

    def use_before(self, row: int) -> None:
        """All rows before a position were delivered."""
        self._forget(bisect_right(self._batches, row, key=lambda batch: batch.first + batch.rows))

    def _forget(self, count: int) -> None:
        if count:
            del self._batches[:count]

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
        if self._batches:
            oldest = self._batches[0]
            skip = oldest.first - oldest.turn_first
            return {"source": oldest.state, "row": oldest.first, "skip": skip, "epoch": oldest.turn}
        skip = self.next_row - self._pass_first
        now = self._source_state() if self._reading is None else self._reading[0]
        return {"source": now, "row": self.next_row, "skip": skip, "epoch": self._passes}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; a source without a state of its own is gone through again, and what was used skipped."""
        self.next_row = state["row"]
        self._pass_first = state["row"] - state["skip"]
        self._passes = state["epoch"]
        self._iterator, self._reading, self._at_end = None, None, False
        self._given, self._batches, self._to_skip = [], [], 0
        if isinstance(self._source, ResumableSource):
            self._source.load_state_dict(state["source"])
        else:
            self._to_skip = state["skip"]

    def _source_state(self) -> Any:
        """The source's state as it is now, which the source may write to again."""
        return as_now(self._source.state_dict()) if isinstance(self._source, ResumableSource) else None


def _without_fillers(value: Any, numbered: NumberedRows) -> tuple[Any, list[int]]:
    """The rows of the data, and their indices."""
    kept = [row for row, valid in enumerate(numbered.valid) if valid]
    spans: list[list[int]] = []
    for row in kept:
        if spans and spans[-1][1] == row:
            spans[-1][1] = row + 1
        else:
            spans.append([row, row + 1])
    parts = [cut(value, start, stop) for start, stop in spans] or [cut(value, 0, 0)]
    return join_rows(parts), [numbered.indices[row] for row in kept]
