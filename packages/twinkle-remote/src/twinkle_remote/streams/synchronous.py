"""The engine of a stream with ahead=0: the calls of the hand-written loop, in its order."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy_values.lazy import Lazy, hand_over
from twinkle_remote.streams.chunks.chunk_result import join_rows, known_rows
from twinkle_remote.streams.chunks.row_count import wrong_rows
from twinkle_remote.streams.chunks.slow_calls import SlowCalls
from twinkle_remote.streams.rows.hand import Hand
from twinkle_remote.streams.rows.positions import outside, position_of
from twinkle_remote.streams.rows.rows_info import RowsInfo, named_rows
from twinkle_remote.streams.schedule.counts import StreamCounts
from twinkle_remote.streams.stages import PlainStage, RemoteStage
from twinkle_remote.streams.telemetry.stream_record import ChunkTimes
from twinkle_remote.values.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from twinkle_remote.streams.options import StreamRules
    from twinkle_remote.streams.rows.row_source import RowSource
    from twinkle_remote.streams.rows.rows_info import QuarantinedRow
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

    A batch is taken off the rows that are left by one assignment, when all stages have been called: what an error or
    Ctrl-C interrupts before that is made again.

    Args:
        source: The rows.
        stages: The stages.
        rules: The options; their rows and their patience count.
        record: What is remembered of calls and steps.
        version: The version now.
        consumed: Ranges of positions that were delivered before a resume, ascending.

    Attributes:
        works_ahead: Stages work while the loop does; they do not.
        set_aside: The rows for which a stage raised at each attempt; none, since the loop is given the error.
        counts: What was delivered.
        hand: The batch that the loop is given.
    """

    works_ahead = False
    set_aside: Sequence[QuarantinedRow] = ()

    def __init__(
        self,
        source: RowSource,
        stages: Sequence[Stage],
        rules: StreamRules,
        record: StreamRecord,
        *,
        version: int = 0,
        consumed: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._source = source
        self._stages = stages
        self._rows = rules.rows
        self._version = version
        self._consumed = tuple(consumed)
        self._spans: Sequence[tuple[int, int]] = ()  # [start, stop) of rows that were read and are left
        self._read_to = source.next_row  # rows before it are in the spans, or were delivered
        self._error: Exception | None = None
        self._unchecked: list[_Called] = []
        self._record = record
        self._watch = SlowCalls(rules.patience, [stage.name for stage in stages])
        self.counts = StreamCounts()
        self.hand: Hand | None = None

    @property
    def version(self) -> int:
        """The version now."""
        return self._version

    def begin_epoch(self) -> None:
        """Read on after the end of an epoch."""
        self._source.begin_pass()

    def publish(self, version: int) -> None:
        """A version was published."""
        self._version = max(self._version, version)

    def held(self) -> AbstractContextManager[object]:
        """A block in which nothing is begun: nothing is, except in the loop's own thread."""
        return nullcontext()

    def next_batch(self) -> Hand | None:
        """The next batch, the same one until it is given; None at the end of the epoch."""
        if self.hand is not None and not self.hand.given:
            return self.hand
        self.hand = None
        self._record.asked(self._check_results())
        self._read()
        taken, left = self._next_spans()
        if not taken:
            self._forget(left)
            error, self._error = self._error, None
            if error is not None:
                raise error
            return None
        return self._make(taken, left)

    def _make(self, taken: Sequence[tuple[int, int]], left: Sequence[tuple[int, int]]) -> Hand:
        first, count = taken[0][0], sum(stop - start for start, stop in taken)
        whole = taken[-1][1] - first == count
        begun = self._version
        value = self._source.rows(first, count) if whole else self._gathered(taken)
        numbers = [self._source.numbers(start, stop - start) for start, stop in taken]
        indices = [index for part, _ in numbers for index in part]
        named = named_rows(indices, numbers[-1][1])
        for index in range(len(self._stages)):
            value = self._through(index, value, first, count, named)
        ended, lag = self._version, self._version - begun
        info = RowsInfo([begun] * count, [ended] * count, [lag] * count, indices, numbers[-1][1])
        hand, counts = Hand(taken, self._source.state(), (value, info)), self.counts.with_delivered(count, lag)
        self.hand, self._spans, self.counts = hand, left, counts
        self._forget(left)
        self._record.given(count, self._version, time.perf_counter())
        return hand

    def position(self, *, without_hand: bool = False) -> dict[str, Any]:
        """The source's position, and the rows that were read and not delivered.

        Args:
            without_hand: Also the batch that the loop has is not delivered.
        """
        source, spans, hand = self._source.state(), [*self._spans, *self._fresh()], self.hand
        if hand is not None and (without_hand or not hand.given):
            source, spans = dict(hand.source), [*hand.spans, *spans]
        return position_of(source, self._source.next_row, spans, self._consumed)

    def close(self) -> None:
        """Do nothing: all that is at work is the loop's."""
        self._watch.close()

    def leave(self) -> None:
        """Close as `close` does: there are no workers of its own to keep."""
        self.close()

    def _fresh(self) -> list[tuple[int, int]]:
        """The rows of the batch that was kept last, until they are in the spans."""
        return outside(self._consumed, self._read_to, self._source.next_row)

    def _read(self) -> None:
        """Read until there are rows of a batch, an error of the source, or its end."""
        while True:
            self._spans, self._read_to = [*self._spans, *self._fresh()], self._source.next_row
            if self._rows is None and self._spans:
                return
            if self._rows is not None and sum(stop - start for start, stop in self._spans) >= self._rows:
                return
            if self._error is not None:
                return
            began = time.perf_counter()
            try:
                batch = self._source.fetch()
            except Exception as error:
                batch, self._error = None, error
            self._record.read(0 if batch is None else batch.rows, time.perf_counter() - began)
            if batch is None:
                return
            self._source.keep(batch)

    def _forget(self, left: Sequence[tuple[int, int]]) -> None:
        """Have the source forget what was delivered."""
        self._source.use_before(left[0][0] if left else self._source.next_row)

    def _next_spans(self) -> tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]:
        """The rows of the next batch, and those that are left then."""
        wanted = self._rows
        if wanted is None:
            return self._spans, ()
        taken, left = [], list(self._spans)
        while left and wanted:
            start, stop = left.pop(0)
            used = min(stop - start, wanted)
            taken.append((start, start + used))
            wanted -= used
            if start + used < stop:
                left.insert(0, (start + used, stop))
        return taken, left

    def _gathered(self, spans: Sequence[tuple[int, int]]) -> Any:
        return join_rows([self._source.rows(start, stop - start) for start, stop in spans])

    def _through(self, index: int, value: Any, first: int, count: int, named: str) -> Any:
        stage, began = self._stages[index], time.perf_counter()
        call = self._watch.begin(index, first, count, named)
        try:
            result = stage.run(value)
        except BaseException:
            self._watch.failed(call)
            raise
        self._watch.returned(call, result)
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
