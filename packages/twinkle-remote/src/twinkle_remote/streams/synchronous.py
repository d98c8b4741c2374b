"""The engine of a stream with ahead=0: the calls of the hand-written loop, in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy import Lazy
from twinkle_remote.errors import CollectError
from twinkle_remote.streams.chunk_result import join_rows, known_rows
from twinkle_remote.streams.stages import PlainStage
from twinkle_remote.streams.told import RowsInfo
from twinkle_remote.values.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.streams.row_source import RowSource
    from twinkle_remote.streams.stages import Stage

_KEPT = 64  # results whose rows are still to be checked


class SynchronousEngine:
    """Makes each batch when the loop asks for it, by whole calls of the stages.

    Args:
        source: The rows.
        stages: The stages.
        rows: Rows of a batch; None for the source's own batches.
        version: The version now.
        consumed: Ranges of positions that were delivered before a resume, ascending.
    """

    def __init__(
        self,
        source: RowSource,
        stages: Sequence[Stage],
        rows: int | None,
        *,
        version: int = 0,
        consumed: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._source = source
        self._stages = stages
        self._rows = rows
        self._version = version
        self._consumed = list(consumed)
        self._spans: list[tuple[int, int]] = []  # rows that were read and are left: first, number
        self._over = False
        self._error: Exception | None = None
        self._unchecked: list[tuple[Lazy[Any], int, str]] = []
        self.delivered = 0

    @property
    def version(self) -> int:
        """The version now."""
        return self._version

    def begin_epoch(self) -> None:
        """Read on after the end of an epoch."""
        self._over = False

    def publish(self, version: int) -> None:
        """A version was published."""
        self._version = max(self._version, version)

    def next_batch(self) -> tuple[Any, RowsInfo] | None:
        """The next batch; None at the end of the epoch."""
        self._check_results()
        while not self._over and self._wants_rows():
            self._read()
        spans = self._take_spans()
        if not spans:
            error, self._error = self._error, None
            if error is not None:
                raise error
            return None
        first, count = spans[0][0], sum(rows for _, rows in spans)
        whole = spans[-1][0] + spans[-1][1] - first == count
        value = self._source.rows(first, count) if whole else self._gathered(spans)
        numbers = [self._source.numbers(*span) for span in spans]
        for stage in self._stages:
            value = self._through(stage, value, count)
        for span in spans:
            self._source.use(*span)
        self.delivered += count
        indices = [index for part, _ in numbers for index in part]
        versions = [self._version] * count
        return value, RowsInfo(versions, versions, [0] * count, indices, numbers[-1][1])

    def position(self) -> dict[str, Any]:
        """The source's position, and the rows that were read and not delivered."""
        spans = [[first, first + rows] for first, rows in self._spans]
        return {**self._source.state(), "read": self._source.next_row, "open": spans}

    def close(self) -> None:
        """Nothing is at work."""

    def _wants_rows(self) -> bool:
        if self._rows is None:
            return not self._spans
        return sum(rows for _, rows in self._spans) < self._rows

    def _read(self) -> None:
        try:
            batch = self._source.fetch()
        except Exception as error:
            batch, self._error = None, error
        if batch is None:
            self._over = True
            return
        self._source.keep(batch)
        start, stop = batch.first, batch.first + batch.rows
        for begin, end in self._consumed:
            if start < end and begin < stop:
                self._add(start, max(start, begin))
                skipped = max(start, begin)
                start = min(stop, end)
                self._source.use(skipped, start - skipped)
        self._add(start, stop)

    def _add(self, start: int, stop: int) -> None:
        if start < stop:
            self._spans.append((start, stop - start))

    def _take_spans(self) -> list[tuple[int, int]]:
        wanted = self._rows
        if wanted is None:
            taken, self._spans = self._spans, []
            return taken
        taken = []
        while self._spans and wanted:
            first, rows = self._spans.pop(0)
            used = min(rows, wanted)
            taken.append((first, used))
            wanted -= used
            if used < rows:
                self._spans.insert(0, (first + used, rows - used))
        return taken

    def _gathered(self, spans: Sequence[tuple[int, int]]) -> Any:
        return join_rows([self._source.rows(*span) for span in spans])

    def _through(self, stage: Stage, value: Any, count: int) -> Any:
        result = stage.function(value)
        if isinstance(result, Lazy):
            self._unchecked.append((result, count, stage.name))
        else:
            made = rows_of(result, stage.name)
            if made is not None or isinstance(stage, PlainStage):  # a process that is not rank 0 may have None
                _check_rows(made, count, stage.name)
        return result

    def _check_results(self) -> None:
        """Check the rows of lazy results that are done, without waiting for others or fetching any."""
        left = []
        for lazy, count, name in self._unchecked:
            if not lazy.done():
                left.append((lazy, count, name))
            elif (made := known_rows(lazy)) is not None:
                _check_rows(made, count, name)
        self._unchecked = left[-_KEPT:]


def _check_rows(made: int | None, count: int, name: str) -> None:
    if made != count:
        raise CollectError(
            f"{name} returned {'a value without rows' if made is None else f'{made} rows'} for {count} rows: a "
            "stage of a stream returns one row for each row that it is given; a row may be a group of answers"
        )
