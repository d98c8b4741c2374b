"""The source of a stream: its batches by the position of their rows, and the state from which what is left is read.

The invariant of exactly once: a row that was read is in `_gone` when it was delivered or left out, and in no other
case; a batch is forgotten when it and all batches before it have no other rows. So the source's state before the oldest
batch that is kept, with the rows after it that are gone, is a state from which each other row is read once.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_remote.lazy.lazy import Lazy
from twinkle_remote.rows.cut import rows_of
from twinkle_remote.tables.operations import concat, take

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

FORMAT = 2
"""The format of states, under the key "stream"."""


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """A value with rows, of which each knows its place.

    Attributes:
        value: The value; lazy where workers hold it.
        count: Its rows.
        holder: Who holds it: the group and the ranks of the workers, and their stored results; None for this process.
    """

    value: Any
    count: int
    holder: tuple[str, Sequence[int], Sequence[object]] | None = None


def gathered(found: Sequence[tuple[PlacedRows, int]]) -> Any:
    """One value of rows of several, each given with its place there: lazy where one of them is; None of no rows."""
    runs: list[tuple[PlacedRows, int, int]] = []
    for rows, place in found:
        if runs and runs[-1][0] is rows and runs[-1][2] == place:
            runs[-1] = (rows, runs[-1][1], place + 1)
        else:
            runs.append((rows, place, place + 1))
    parts = [
        rows.value if stop - start == rows.count else take(rows.value, slice(start, stop)) for rows, start, stop in runs
    ]
    return concat(parts) if len(parts) > 1 else next(iter(parts), None)


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """A batch of the source.

    Attributes:
        rows: Its rows, without fillers.
        first: Position of its first row.
        gone: Positions of its rows that were delivered before a resume.
        epoch: The epoch that the source reports, else the number of the pass over it.
        indices: Index in the dataset of each row, else its number in the pass.
        before: Where a reader begins to read it: the source's state, the position, the pass and its first position.
    """

    rows: PlacedRows
    first: int
    gone: Collection[int]
    epoch: int
    indices: Sequence[int]
    before: dict[str, Any]

    @property
    def positions(self) -> range:
        """The positions of its rows."""
        return range(self.first, self.first + self.rows.count)


@dataclass(frozen=True, slots=True)
class RowsInfo:
    """The rows of a batch, one entry each.

    Attributes:
        begun: Version of the weights when the first stage began.
        ended: Version when the last stage was done; larger than `begun` if a version was published meanwhile.
        lag: Version at delivery minus `begun`.
        indices: Index in the dataset; the number in the epoch if the source does not report indices.
        epoch: Epoch of the batch, from 0.
    """

    begun: Sequence[int]
    ended: Sequence[int]
    lag: Sequence[int]
    indices: Sequence[int]
    epoch: int

    @property
    def valid(self) -> Sequence[bool]:
        """True for each row: a stream delivers no fillers, and may be the source of another one."""
        return [True] * len(self.indices)


_sources: weakref.WeakSet[RowSource] = weakref.WeakSet()


def is_read_by_a_stream(batches: object) -> bool:
    """Whether a stream that exists reads a source: then its state, and not the source's, has what was delivered."""
    return any(source.is_reading(batches) for source in list(_sources))


class RowSource:
    """Reads batches in the loop's thread.

    Args:
        batches: Any iterable of values with rows; each iteration over it is an epoch. With `state_dict` and
            `load_state_dict` it is resumed by these, otherwise it is gone through again.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self._is_resumable = hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict")
        self._iterator: Iterator[Any] | None = None
        self._kept: list[SourceBatch] = []  # those with rows that are not gone, and what was read after the first
        self._gone: set[int] = set()  # positions from the first kept batch on
        self._skip = 0  # rows to be read over, of a source that is gone through again
        self._is_lost = False  # the next row of an iterator is not known
        self._pass_first = self._pass = self.next_row = 0
        self.at_end = False  # until the next epoch is begun
        _sources.add(self)

    def is_reading(self, batches: object) -> bool:
        """Whether it has read from a source, and not to the end."""
        return batches is self._batches and (bool(self._kept) or self._iterator is not None)

    def read(self) -> SourceBatch | None:
        """The next batch that has rows; None at the end of the epoch.

        Raises:
            ValueError: The source is an iterator that was interrupted or failed, so that its next row is not known.
        """
        while not self.at_end:
            before = self._before()
            for value in self._next(before):
                batch = self._batch(value, before)
                if batch is not None:
                    self.next_row = batch.positions.stop
                    self._kept.append(batch)
                    return batch
        return None

    def _next(self, before: Mapping[str, Any]) -> Sequence[Any]:
        """The next value of the source; none at the end of the epoch."""
        if self._is_lost:
            raise ValueError(
                "the stream's source is an iterator that was interrupted or has failed, and its next row is not known: "
                "give the stream an iterable that can be gone through again, or one with state_dict and load_state_dict"
            )
        if self._iterator is None:
            self._iterator = iter(self._batches)
        try:
            return (next(self._iterator),)
        except StopIteration:
            self._iterator, self._pass, self._pass_first = None, self._pass + 1, self.next_row
            self.at_end, self._skip = True, 0
            return ()
        except Exception:
            self._go_back(before)
            raise

    def _batch(self, value: Any, before: dict[str, Any]) -> SourceBatch | None:
        """The batch without fillers; None if it has no rows that are wanted."""
        is_lazy = isinstance(value, Lazy)
        numbers_rows = not is_lazy and all(hasattr(value, name) for name in ("indices", "valid", "epoch"))
        info = value if numbers_rows else getattr(self._batches, "info", None)
        if numbers_rows and isinstance(value, list | tuple):
            value = list(value)  # the stage gets samples; what the batch tells of them is kept here
        count = rows_of(value, "a batch of the source") if not is_lazy else len(value if info is None else info.indices)
        if count is None:
            raise TypeError(f"a stream's source yields values with rows, got {type(value).__name__} {value!r:.60}")
        valid = range(count) if info is None else [row for row, kept in enumerate(info.valid) if kept]
        skipped = min(self._skip, len(valid))
        self._skip -= skipped
        valid = valid[skipped:]
        if not valid:
            return None
        number, epoch = self.next_row - self._pass_first, self._pass
        indices: Sequence[int] = range(number, number + len(valid))
        if info is not None:
            indices, epoch = [info.indices[row] for row in valid], info.epoch
        rows = PlacedRows(take(value, valid) if len(valid) < count else value, len(valid))
        gone = self._gone.intersection(range(self.next_row, self.next_row + len(valid)))
        return SourceBatch(rows, self.next_row, gone, epoch, indices, before)

    def numbers(self, rows: Sequence[int]) -> tuple[list[int], int]:
        """The index in the dataset of each row, and the epoch of the last one; the rows are kept."""
        batch, indices = self._kept[0], list[int]()
        for row in rows:
            if row not in batch.positions:
                batch = next(one for one in self._kept if row in one.positions)
            indices.append(batch.indices[row - batch.first])
        return indices, batch.epoch

    # the state

    def _before(self) -> dict[str, Any]:
        state = self._batches.state_dict() if self._is_resumable else None  # type: ignore[attr-defined]  # it has
        return {"source": state, "row": self.next_row, "pass": self._pass, "pass_first": self._pass_first}

    def let_go(self, rows: Iterable[int]) -> None:
        """Rows were delivered or left out."""
        self._gone.update(rows)
        while self._kept and self._gone.issuperset(self._kept[0].positions):
            self._gone.difference_update(self._kept.pop(0).positions)

    def state(self, more: Collection[int] = ()) -> dict[str, Any]:
        """Where a reader begins so that it meets every row that is not gone, and the rows after that that are.

        Args:
            more: Rows that count as gone too.
        """
        gone = self._gone.union(more)
        oldest = next((batch for batch in self._kept if not gone.issuperset(batch.positions)), None)
        before = self._before() if oldest is None else oldest.before
        return {**before, "gone": _ranges(row for row in gone if row >= before["row"])}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.next_row, self._pass, self._pass_first = state["row"], state["pass"], state["pass_first"]
        self._gone = {row for first, stop in state["gone"] for row in range(first, stop)}
        self._kept, self.at_end = [], False
        self._go_back(state)

    def _go_back(self, state: Mapping[str, Any]) -> None:
        """Begin to read again from a state of the source."""
        iterator, self._iterator = self._iterator, None
        if self._is_resumable:
            self._batches.load_state_dict(state["source"])  # type: ignore[attr-defined]  # it has
        else:
            self._is_lost |= iterator is not None and iterator is self._batches
            self._skip = state["row"] - state["pass_first"]


def _ranges(rows: Iterable[int]) -> list[list[int]]:
    """Numbers as ranges [first, stop), ascending."""
    found: list[list[int]] = []
    for row in sorted(rows):
        if found and found[-1][1] == row:
            found[-1][1] = row + 1
        else:
            found.append([row, row + 1])
    return found
