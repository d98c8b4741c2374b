"""The engine of a stream with ahead=n: chunks go to data ranks, and batches are made of what is finished."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CallTimeoutError, CollectError, NotInitializedError, TwinkleError, WorkerDiedError
from twinkle_remote.sessions.runtime import running
from twinkle_remote.streams.aside import AsideRows
from twinkle_remote.streams.chunk_result import ChunkResult, joined
from twinkle_remote.streams.lost_ranks import LostRanks
from twinkle_remote.streams.plain_calls import PlainCalls
from twinkle_remote.streams.positions import overlaps
from twinkle_remote.streams.pump import Pump
from twinkle_remote.streams.schedule.scheduler import Scheduler
from twinkle_remote.streams.stages import PlainStage, RemoteStage, pools_of
from twinkle_remote.streams.told import RowsInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.streams.row_source import RowSource, SourceBatch
    from twinkle_remote.streams.rules import StreamRules
    from twinkle_remote.streams.schedule.decisions import Assignment, Part
    from twinkle_remote.streams.spool import Spool
    from twinkle_remote.streams.stages import Stage
    from twinkle_remote.streams.told import SetAside

_SLICE_SECONDS = 0.5
_LATE_SECONDS = 0.2
_MEASURED = 10_000  # rows whose seconds are kept, for `explain`


@dataclass(slots=True)
class _Running:
    """A chunk at work."""

    work: Assignment
    call: PendingCall


class AheadEngine:
    """Drives a schedule with remote calls.

    Args:
        source: The rows.
        stages: At least one.
        rules: The options; `ahead` is above 0.
        version: The version now.
        line: File and line of the user's code that made the stream, for messages.
        consumed: Ranges of positions that were delivered before a resume.
        spool: Where finished rows are written, or None.
    """

    def __init__(
        self,
        source: RowSource,
        stages: Sequence[Stage],
        rules: StreamRules,
        *,
        line: str = "",
        version: int = 0,
        consumed: Sequence[tuple[int, int]] = (),
        spool: Spool | None = None,
    ) -> None:
        self._source = source
        self._stages = stages
        self._consumed = consumed
        self._runtime = running()
        self._backend = self._runtime.backend
        pools, of_stage = pools_of(stages)
        self.schedule = Scheduler(rules, pools, of_stage, first=source.next_row, version=version)
        self._of_stage = of_stage
        self._running: dict[int, _Running] = {}
        self._replies: dict[Reply, int] = {}
        self._results: dict[int, ChunkResult] = {}
        self._plain = PlainCalls(rules.at_once, self._wake)
        self._lost = LostRanks(self.schedule)
        self._late_at = 0.0
        self._error: BaseException | None = None
        self._source_error: BaseException | None = None
        self._aside = AsideRows()
        self._spool = spool
        if spool is not None:
            spool.restore(version)
        self.busy_seconds = [0.0] * len(stages)
        self.row_seconds: list[deque[float]] = [deque(maxlen=_MEASURED) for _ in stages]
        self._pump = Pump(self, line)
        self._started = False

    # the loop's side

    def begin_epoch(self) -> None:
        """Read on after the end of an epoch."""
        with self._pump.changed:
            self.schedule.source_goes_on()

    def next_batch(self) -> tuple[Any, RowsInfo] | None:
        """The next batch; None at the end of the epoch.

        Raises:
            TwinkleError: A stage fails for all rows, all workers of a stage are lost, or the session has ended.
        """
        with self._pump.changed:
            self.schedule.ask()
            self._pump.wake()
        if not self._started:
            self._started = True
            self._pump.start()
        while True:
            self._read()
            with self._pump.changed:
                self._check()
                if self.schedule.ready():
                    return self._deliver(self.schedule.take())
                if self.schedule.at_end and not self.schedule.left:
                    self._raise_source_error()
                    return None
                if not self.schedule.wants_rows():
                    self._pump.changed.wait(_SLICE_SECONDS)

    def _read(self) -> None:
        """Read what the schedule wants, in the loop's own thread: a source may be anything, and seldom locks."""
        while True:
            with self._pump.changed:
                if self._error is not None or not self.schedule.wants_rows():
                    return
            batch: SourceBatch | None = None
            if self._source_error is None:
                try:
                    batch = self._source.fetch()
                except Exception as error:
                    self._source_error = error
            with self._pump.changed:
                if batch is None:
                    self.schedule.source_ended()
                    return
                self._source.keep(batch)
                made = {} if self._spool is None else self._spool.made(batch.first, batch.rows)
                self.schedule.read(batch.rows, consumed=self._consumed, made=made)
                for start, stop in overlaps(self._consumed, batch.first, batch.first + batch.rows):
                    self._source.use(start, stop - start)
                self._pump.wake()

    def _check(self) -> None:
        if self._error is not None:
            error, traceback = self._error, self._error.__traceback__
            if isinstance(error, TwinkleError):
                traceback = None
            raise error.with_traceback(traceback)

    def _raise_source_error(self) -> None:
        error, self._source_error = self._source_error, None
        if error is not None:
            raise error

    def _deliver(self, parts: Sequence[Part]) -> tuple[Any, RowsInfo]:
        begun: list[int] = []
        ended: list[int] = []
        indices: list[int] = []
        epoch = 0
        pieces = []
        for part in parts:
            result = self._result(part)
            pieces.append((result.at(part.offset), part.rows))
            begun += [part.begun] * part.rows
            ended += [part.ended] * part.rows
            numbers, epoch = self._source.numbers(part.first, part.rows)
            indices += numbers
        value = joined(pieces)
        for part in parts:
            self._source.use(part.first, part.rows)
        self._pump.wake()
        lag = [self.schedule.version - version for version in begun]
        return value, RowsInfo(begun, ended, lag, indices, epoch)

    def _result(self, part: Part) -> ChunkResult:
        spooled = None if self._spool is None else self._spool.take(self._stages[-1], part.first)
        if spooled is not None:
            return spooled
        return self._results.pop(part.chunk) if part.whole else self._results[part.chunk]

    def publish(self, version: int) -> None:
        """A version was published."""
        with self._pump.changed:
            self.schedule.published(version)
            self._forget_given_up()
            self._pump.wake()

    @property
    def set_aside(self) -> Sequence[SetAside]:
        """The rows for which a stage raised at each attempt."""
        return tuple(self._aside.rows)

    @property
    def version(self) -> int:
        """The version now."""
        return self.schedule.version

    def position(self) -> dict[str, Any]:
        """The source's position, and the rows that were read and not delivered."""
        with self._pump.changed:
            read = self.schedule.rows_read
            return {**self._source.state(), "read": read, "open": [list(span) for span in self.schedule.open_rows()]}

    def close(self) -> None:
        """End the threads; rows at work are not waited for."""
        self._pump.close()
        self._plain.close()
        if self._started:
            self._pump.join(2 * _SLICE_SECONDS)
        self._results.clear()

    # the pump's side

    def wait(self, replies: Sequence[Reply], seconds: float) -> Sequence[Reply]:
        """Wait for replies."""
        return self._backend.wait(replies, seconds)

    def waiting_for(self) -> Sequence[Reply]:
        """The replies of chunks at work, and of questions to lost ranks."""
        return [*self._replies, *self._lost.replies()]

    def broke(self, error: BaseException) -> None:
        """Keep an error for the loop."""
        if self._error is None:
            self._error = error

    def step(self, done: Sequence[Reply]) -> None:
        """Take in what is done, and begin what can be begun."""
        if self._runtime.closed:
            raise self._closed_error()
        for reply in done:
            chunk = self._replies.get(reply)
            if chunk is not None:
                self._look_at(chunk)
            else:
                self._lost.answered(reply)
        self._take_values()
        self._look_for_late_ones()
        while (work := self.schedule.next_work()) is not None:
            self._begin(work)
        self._forget_given_up()

    def _closed_error(self) -> BaseException:
        return NotInitializedError("the session ended while a stream was open: close the stream before shutdown")

    def _begin(self, work: Assignment) -> None:
        stage = self._stages[work.stage]
        given = self._input(work)
        if isinstance(stage, PlainStage):
            self._plain.begin(stage, work.chunk, given)
            return
        call = stage.begin(work.rank, given)
        self._running[work.chunk] = _Running(work, call)
        for reply in call.replies():
            self._replies[reply] = work.chunk

    def _wake(self) -> None:
        with self._pump.changed:
            self._pump.wake()

    def _input(self, work: Assignment) -> Any:
        if work.stage == 0:
            if self._spool is not None:
                self._spool.drop(work.first, work.rows)
            return self._source.rows(work.first, work.rows)
        return joined([(self._results[work.chunk], work.rows)])

    def _look_at(self, chunk: int) -> None:
        """A reply of a chunk's call is done; the chunk is when all are, or one has failed."""
        call = self._running[chunk].call
        if call.done() or call.failed():
            self._ended(chunk)

    def _ended(self, chunk: int) -> None:
        run = self._running.pop(chunk)
        for reply in run.call.replies():
            self._replies.pop(reply, None)
        try:
            run.call.wait(0.0)
        except (CallTimeoutError, WorkerDiedError) as error:
            self._lose(run, error)
        except TwinkleError as error:
            self._failed(run.work, error)
        else:
            stage = self._stages[run.work.stage]
            assert isinstance(stage, RemoteStage)
            rank = stage.collects[run.work.rank]
            seconds = run.call.outcome(rank).seconds
            self.busy_seconds[run.work.stage] += seconds
            self.row_seconds[run.work.stage].append(seconds / run.work.rows)
            self._made(run.work, ChunkResult(run.call, rank))

    def _made(self, work: Assignment, result: ChunkResult) -> None:
        rows = result.rows()
        if rows != work.rows:
            raise self._wrong_rows(work, rows)
        self._results[work.chunk] = result
        self.schedule.finished(work.chunk)
        if self._spool is not None and self.schedule.is_finished(work.chunk):
            versions = self.schedule.chunks.begun[work.chunk], self.schedule.version
            self._spool.write(self._stages[-1], work, result, *versions)

    def _wrong_rows(self, work: Assignment, rows: int | None) -> BaseException:
        name = self._stages[work.stage].name
        made = "a value without rows" if rows is None else f"{rows} rows"
        return CollectError(
            f"{name} returned {made} for {work.rows} rows ({self._where(work)}): a stage of a stream returns one row "
            "for each row that it is given; a row may be a group of answers"
        )

    def _where(self, work: Assignment) -> str:
        numbers, epoch = self._source.numbers(work.first, work.rows)
        shown = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
        return f"row {shown} of epoch {epoch}"

    def _failed(self, work: Assignment, error: Exception) -> None:
        where = self._where(work)
        parts = self.schedule.failed(work.chunk)
        self._replace(work, parts)
        if not parts:
            self._put_aside(work, where, error)

    def _put_aside(self, work: Assignment, where: str, error: Exception) -> None:
        finished = self.schedule.counts.delivered + len(self._results)
        self._aside.add(
            *self._source.numbers(work.first, work.rows), error, where, self._stages[work.stage].name, finished
        )

    def _lose(self, run: _Running, error: TwinkleError) -> None:
        """The worker of a chunk is lost, or has not answered in time."""
        work, stage = run.work, self._stages[run.work.stage]
        assert isinstance(stage, RemoteStage)
        pool = self._of_stage[work.stage]
        lost_input = run.call.failed() and not run.call.first_failure().died
        if isinstance(error, CallTimeoutError):
            self._lost.late(pool, work.rank, run.call)
        elif not lost_input:
            self._lost.lose(pool, stage, work.rank, error)
            self._make_again(stage.peers[work.rank], stage.component)
        where = self._where(work)
        parts = self.schedule.lost(work.chunk, 0 if lost_input else work.stage)
        self._replace(work, parts)
        if not parts:
            self._put_aside(work, where, error)

    def _make_again(self, ranks: Sequence[int], component: Component) -> None:
        """Finished rows whose only copy was on workers that are lost."""
        store = self._backend.store
        for chunk, result in list(self._results.items()):
            if result.call is None or result.rank not in ranks or not self.schedule.is_finished(chunk):
                continue
            made_by = self._stages[-1]
            assert isinstance(made_by, RemoteStage)
            if made_by.component is component and not store.outlives_worker(result.call.outcome(result.rank).payload):
                work = self.schedule.assignment(chunk)
                self._replace(work, self.schedule.lost(chunk))

    def _replace(self, work: Assignment, parts: Sequence[int]) -> None:
        """Give the chunks that take the place of one its result of the stage before."""
        result = self._results.pop(work.chunk, None)
        if result is not None and work.stage:
            for offset, part in enumerate(parts):
                self._results[part] = result.at(offset)

    def _forget_given_up(self) -> None:
        given_up, self.schedule.given_up = self.schedule.given_up, []
        for first, rows in given_up:
            self._source.use(first, rows)

    def _take_values(self) -> None:
        for chunk, future in self._plain.take_ended():
            work = self.schedule.assignment(chunk)
            error = future.exception()
            if isinstance(error, Exception):
                self._failed(work, error)
            elif error is not None:
                raise error
            else:
                self._made(work, ChunkResult(None, value=future.result()))

    def _look_for_late_ones(self) -> None:
        """Chunks past their deadline go to others; their rank is used again when it has answered after all."""
        now = time.monotonic()
        if now < self._late_at:
            return
        self._late_at = now + _LATE_SECONDS
        for chunk in [chunk for chunk, run in self._running.items() if run.call.spec.timeout and run.call.late()]:
            self._ended(chunk)
        self._lost.ask()
