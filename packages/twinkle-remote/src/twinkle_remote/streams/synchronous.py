"""The engine of a stream with ahead=0: the calls of the hand-written loop, in its order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy import Lazy, hand_over
from twinkle_remote.streams.chunk_result import join_rows, known_rows
from twinkle_remote.streams.row_count import wrong_rows
from twinkle_remote.streams.schedule.counts import StreamCounts
from twinkle_remote.streams.stages import PlainStage, RemoteStage
from twinkle_remote.streams.telemetry.stream_record import ChunkTimes
from twinkle_remote.streams.told import RowsInfo
from twinkle_remote.values.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.streams.row_source import RowSource
    from twinkle_remote.streams.stages import Stage
    from twinkle_remote.streams.telemetry.stream_record import StreamRecord

_KEPT = 64  # results whose rows are still to be checked


@dataclass(slots=True)
class _Called:
    """A whole call of a stage, whose lazy result is not looked at yet.

    Attributes:
        result: The lazy result.
        stage: Index of the stage.
        first: Position of its first row.
        rows: Rows that it was given.
        sent: When it was made.
        version: The version then.
    """

    result: Lazy[Any]
    stage: int
    first: int
    rows: int
    sent: float
    version: int


class SynchronousEngine:
    """Makes each batch when the loop asks for it, by whole calls of the stages.

    Args:
        source: The rows.
        stages: The stages.
        rows: Rows of a batch; None for the source's own batches.
        record: What is remembered of calls and steps.
        version: The version now.
        consumed: Ranges of positions that were delivered before a resume, ascending.
    """

    def __init__(
        self,
        source: RowSource,
        stages: Sequence[Stage],
        rows: int | None,
        record: StreamRecord,
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
        self._unchecked: list[_Called] = []
        self._record = record
        self.counts = StreamCounts()

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
        self._record.asked(self._check_results())
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
        for index in range(len(self._stages)):
            value = self._through(index, value, first, count)
        for span in spans:
            self._source.use(*span)
        self.counts.delivered += count
        self.counts.lag[0] += count
        self._record.given(count, self._version, time.perf_counter())
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
        began = time.perf_counter()
        try:
            batch = self._source.fetch()
        except Exception as error:
            batch, self._error = None, error
        self._record.read(0 if batch is None else batch.rows, time.perf_counter() - began)
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

    def _through(self, index: int, value: Any, first: int, count: int) -> Any:
        stage, began = self._stages[index], time.perf_counter()
        result = stage.function(value)
        if isinstance(result, Lazy):
            self._unchecked.append(_Called(result, index, first, count, began, self._version))
            return result
        self._record.ran(ChunkTimes(index, 0, first, count, self._version, began, time.perf_counter(), False), began)
        made = rows_of(result, stage.name)
        # A process that is not rank 0 may have None.
        if made != count and (made is not None or isinstance(stage, PlainStage)):
            raise wrong_rows(made, count, stage.name)
        return result

    def _check_results(self) -> float:
        """Check the rows of lazy results that are done, without waiting for others or fetching any.

        Returns:
            When the last of them was there; 0 without any.
        """
        left, there = [], 0.0
        for called in self._unchecked:
            if not called.result.done():
                left.append(called)
                continue
            stage = self._stages[called.stage]
            if (made := known_rows(called.result)) not in (None, called.rows):
                raise wrong_rows(made, called.rows, stage.name)
            if isinstance(stage, RemoteStage):
                there = max(there, self._keep_times(stage, called))
        self._unchecked = left[-_KEPT:]
        return there

    def _keep_times(self, stage: RemoteStage, called: _Called) -> float:
        """Keep what is known of a call; returns when it ended."""
        calls = {rank: call for call, rank in hand_over(called.result, 0)[0]}
        ended, first = 0.0, called.first
        for data_rank, rank in enumerate(rank for ranks in stage.collects for rank in ranks):
            call = calls.get(rank)
            if call is None or call.failed():
                continue
            outcome = call.outcome(rank)
            rows = called.rows if outcome.rows_given is None else outcome.rows_given
            began = outcome.started - self._record.wall
            if rows:
                end = began + outcome.seconds
                times = ChunkTimes(called.stage, data_rank, first, rows, called.version, began, end, False)
                # Later stages are called before their rows are there.
                self._record.ran(times, min(began, called.sent) if called.stage == 0 else began)
            ended, first = max(ended, began + outcome.seconds), first + rows
        return ended
