"""The engine of a stream with ahead=n: chunks go to data ranks, and batches are made of what is finished."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CallTimeoutError, NotInitializedError, TwinkleError, WorkerDiedError
from twinkle_remote.sessions.current import running
from twinkle_remote.streams.aside import AsideRows
from twinkle_remote.streams.chunk_result import ChunkResult
from twinkle_remote.streams.chunk_results import ChunkResults
from twinkle_remote.streams.joining import drained_ranks, joining_stages
from twinkle_remote.streams.lost_ranks import LostRanks
from twinkle_remote.streams.plain_calls import PlainCalls
from twinkle_remote.streams.positions import overlaps
from twinkle_remote.streams.pump import Pump
from twinkle_remote.streams.row_count import wrong_rows
from twinkle_remote.streams.running_chunks import RunningChunk, RunningChunks
from twinkle_remote.streams.schedule.scheduler import Scheduler
from twinkle_remote.streams.stages import PlainStage, RemoteStage, pools_of, serial_pools
from twinkle_remote.streams.telemetry.loop_lanes import rows_label

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.sessions.weight_sources import WorkersOf
    from twinkle_remote.streams.row_source import RowSource, SourceBatch
    from twinkle_remote.streams.rules import StreamRules
    from twinkle_remote.streams.schedule.decisions import Assignment
    from twinkle_remote.streams.spool import Spool
    from twinkle_remote.streams.stages import Stage
    from twinkle_remote.streams.telemetry.stream_record import StreamRecord
    from twinkle_remote.streams.told import RowsInfo, SetAside

_SLICE_SECONDS = 0.5
_WAIT_SECONDS = 0.05  # between two looks at what no step tells
_LATE_SECONDS = 0.2


class AheadEngine:
    """Drives a schedule with remote calls.

    Args:
        source: The rows.
        stages: At least one.
        rules: The options; `ahead` is above 0.
        record: What is remembered of chunks and steps.
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
        record: StreamRecord,
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
        serial = serial_pools(stages, of_stage)
        self.schedule = Scheduler(rules, pools, of_stage, first=source.next_row, version=version, serial=serial)
        self._of_stage = of_stage
        self._pump = Pump(self, self._backend, line)
        self._running = RunningChunks()
        self._results = ChunkResults(source, stages[-1], spool)
        self._plain = PlainCalls(rules.at_once, self._pump.wake)
        remote = [(pool, stage) for pool, stage in zip(of_stage, stages, strict=True) if isinstance(stage, RemoteStage)]
        self._lost = LostRanks(self.schedule, remote, self._runtime, self._pump.wake)
        self._late_at = 0.0
        self._error: BaseException | None = None
        self._source_error: BaseException | None = None
        self._aside = AsideRows()
        self._spool = spool
        if spool is not None:
            spool.restore(version)
        self._record = record

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
        self._record.asked()
        with self._pump.changed:
            self.schedule.ask()
            self._pump.wake()
        self._pump.start()
        while True:
            self._read()
            with self._pump.changed:
                self._check()
                if self.schedule.ready():
                    there = time.perf_counter()
                    value, info = self._results.batch(self.schedule.take(), self.schedule.version)
                    self._pump.wake()
                    self._record.given(len(info.begun), self.schedule.version, there)
                    return value, info
                if self.schedule.at_end and not self.schedule.left:
                    self._raise_source_error()
                    return None
                step = None if self.schedule.wants_rows() else self._pump.next_step()
            if step is not None:
                step.wait(_SLICE_SECONDS)

    def _read(self) -> None:
        """Read what the schedule wants, in the loop's own thread: a source may be anything, and seldom locks."""
        while True:
            with self._pump.changed:
                if self._error is not None or not self.schedule.wants_rows():
                    return
            batch: SourceBatch | None = None
            began = time.perf_counter()
            if self._source_error is None:
                try:
                    batch = self._source.fetch()
                except Exception as error:
                    self._source_error = error
            self._record.read(0 if batch is None else batch.rows, time.perf_counter() - began)
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

    def add(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        """Have another component work for stages; see `Stream.add`."""
        with self._pump.changed:
            pool, joined = joining_stages(self._stages, self._of_stage, functions)
            for index, other in joined.items():
                stage = self._stages[index]
                assert isinstance(stage, RemoteStage)
                fresh = stage.join(other)
                self._lost.give_weights(stage.component, other.function)
            self.schedule.pools[pool].grow(len(fresh))
            for rank in fresh:
                self._lost.join(pool, rank)
        self._pump.wake()

    def drain(self, function: Callable[[Any], Any], timeout: float | None) -> None:
        """Give a component no more chunks, and wait for those that it has; see `Stream.drain`."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._pump.changed:
            pool, ranks = drained_ranks(self._stages, self._of_stage, function)

        def are_left() -> bool:
            if others_work := self._lost.others_work(pool, ranks):
                for rank in ranks:
                    self._lost.drain(pool, rank)
            return others_work

        if not self._wait_until(are_left, until):
            raise CallTimeoutError(f"what joined has no weights yet after {timeout:g} s, and nothing else works")
        self._pump.wake()
        if not self._wait_until(lambda: not any(map(self.schedule.pools[pool].busy, ranks)), until):
            raise CallTimeoutError(f"chunks are still at work on {len(ranks)} data ranks after {timeout:g} s")

    def _wait_until(self, done: Callable[[], bool], until: float | None) -> bool:
        """Look for what no step tells until it is so; False at `until`, in monotonic seconds."""
        while True:
            with self._pump.changed:
                if done():
                    return True
                self._check()
                step = self._pump.next_step()
            left = _WAIT_SECONDS if until is None else min(_WAIT_SECONDS, until - time.monotonic())
            if left <= 0:
                return False
            step.wait(left)

    def held(self) -> AbstractContextManager[object]:
        """A block in which nothing is begun."""
        return self._pump.changed

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
        """End the threads, and cancel async calls; others end by themselves, and nothing waits for them."""
        self._pump.close()
        self._plain.close()
        self._lost.close()
        self._pump.join(2 * _SLICE_SECONDS)
        self._running.close()
        self._results.clear()

    # the pump's side

    def told(self) -> bool:
        """Whether the loop can go on."""
        return self.schedule.ready() or self.schedule.wants_rows() or (self.schedule.at_end and not self.schedule.left)

    def waiting_for(self) -> Sequence[Reply]:
        """The replies of chunks at work."""
        return self._running.replies()

    def broke(self, error: BaseException) -> None:
        """Keep an error for the loop."""
        if self._error is None:
            self._error = error

    def step(self, done: Sequence[Reply]) -> None:
        """Take in what is done, and begin what can be begun."""
        if self._runtime.closed:
            raise NotInitializedError("the session ended while a stream was open: close the stream before shutdown")
        for chunk in self._running.take_over(done):
            self._ended(chunk)
        self._take_values()
        self._look_for_late_ones()
        while (work := self.schedule.next_work()) is not None:
            self._begin(work)
        self._forget_given_up()

    def _begin(self, work: Assignment) -> None:
        stage = self._stages[work.stage]
        given = self._results.given(work)
        self._record.sent(work)
        if isinstance(stage, PlainStage):
            self._plain.begin(stage, work.chunk, given)
            return
        label = rows_label(work.first, work.rows)
        call = None if self._lost.is_another(stage, work.rank) else stage.begin(work.rank, given, label)
        if call is None or self._lost.is_another(stage, work.rank):  # told meanwhile: the call may be the other's
            self._record.received(work, failed=True)
            self._lose_rank(work, stage, None)
            self._results.replace(work, self.schedule.lost(work.chunk, work.stage))
            return
        self._pump.watch(self._running.begin(work, call))

    def _ended(self, run: RunningChunk) -> None:
        try:
            run.call.wait(0.0)
        except (CallTimeoutError, WorkerDiedError) as error:
            self._lose(run, error)
        except TwinkleError as error:
            self._failed(run.work, error)
        else:
            stage = self._stages[run.work.stage]
            assert isinstance(stage, RemoteStage)
            ranks = stage.collects[run.work.rank]
            slowest = max(map(run.call.outcome, ranks), key=lambda outcome: outcome.seconds)
            self._record.received(run.work, slowest.seconds, slowest.started)
            self._made(run.work, ChunkResult(run.call, ranks, component=stage.components[run.work.rank]))

    def _made(self, work: Assignment, result: ChunkResult) -> None:
        if (rows := result.rows()) != work.rows:
            raise wrong_rows(rows, work.rows, self._stages[work.stage].name, self._where(work))
        self._results.keep(work.chunk, result)
        self.schedule.finished(work.chunk)
        if self._spool is not None and self.schedule.is_finished(work.chunk):
            self._spool.write(self._stages[-1], work, result, work.version, self.schedule.version)

    def _where(self, work: Assignment) -> str:
        numbers, epoch = self._source.numbers(work.first, work.rows)
        shown = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
        return f"row {shown} of epoch {epoch}"

    def _failed(self, work: Assignment, error: Exception) -> None:
        self._record.received(work, failed=True)
        where = self._where(work)
        parts = self.schedule.failed(work.chunk)
        self._results.replace(work, parts)
        if not parts:
            self._put_aside(work, where, error)

    def _put_aside(self, work: Assignment, where: str, error: Exception) -> None:
        finished = self.schedule.counts.delivered + len(self._results)
        self._aside.add(
            *self._source.numbers(work.first, work.rows), error, where, self._stages[work.stage].name, finished
        )

    def _lose(self, run: RunningChunk, error: TwinkleError) -> None:
        """The worker of a chunk is lost, or has not answered in time."""
        work, stage = run.work, self._stages[run.work.stage]
        self._record.received(work, failed=True)
        assert isinstance(stage, RemoteStage)
        pool = self._of_stage[work.stage]
        lost_input = run.call.failed() and not run.call.first_failure().died
        if isinstance(error, CallTimeoutError):
            self._lost.late(pool, work.rank, run.call)
        elif not lost_input:
            self._lose_rank(work, stage, error)
        where = self._where(work)
        parts = self.schedule.lost(work.chunk, 0 if lost_input else work.stage)
        self._results.replace(work, parts)
        if not parts:
            self._put_aside(work, where, error)

    def _lose_rank(self, work: Assignment, stage: RemoteStage, error: TwinkleError | None) -> None:
        self._lost.lose(self._of_stage[work.stage], stage, work.rank, error)
        self._make_again(stage.workers(work.rank))

    def _make_again(self, workers: WorkersOf) -> None:
        """Finished rows whose only copy was on workers that are lost."""
        store = self._backend.store
        for chunk, result in self._results.held_by(workers):
            if self.schedule.is_finished(chunk) and not all(map(store.outlives_worker, result.payloads())):
                work = self.schedule.assignment(chunk)
                self._results.replace(work, self.schedule.lost(chunk))

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
                self._record.received(work)
                self._made(work, ChunkResult(None, value=future.result()))

    def _look_for_late_ones(self) -> None:
        """Chunks past their deadline go to others; their rank is used again when it has answered after all."""
        now = time.monotonic()
        if now < self._late_at:
            return
        self._late_at = now + _LATE_SECONDS
        self._lost.look()
        for chunk in self._running.take_late():
            self._ended(chunk)
