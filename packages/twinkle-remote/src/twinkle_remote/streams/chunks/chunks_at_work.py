"""Chunks at work: begun on data ranks or in threads of this process, and taken in when they are over."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING
from weakref import WeakSet

from twinkle_remote.errors import CallTimeoutError, TwinkleError, WorkerDiedError
from twinkle_remote.streams.chunks.chunk_result import ChunkResult
from twinkle_remote.streams.chunks.plain_calls import PlainCalls
from twinkle_remote.streams.chunks.row_count import wrong_rows
from twinkle_remote.streams.chunks.running_calls import RunningCall, RunningCalls
from twinkle_remote.streams.chunks.slow_chunks import SlowChunks
from twinkle_remote.streams.rows.quarantine import Quarantine
from twinkle_remote.streams.rows.rows_info import named_rows
from twinkle_remote.streams.stages import PlainStage, RemoteStage
from twinkle_remote.streams.telemetry.stream_timeline import rows_label

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Reply, Store
    from twinkle_remote.sessions.weight_sources import WorkersOf
    from twinkle_remote.streams.chunks.chunk_results import ChunkResults
    from twinkle_remote.streams.chunks.spool import Spool
    from twinkle_remote.streams.ranks.lost_ranks import LostRanks
    from twinkle_remote.streams.rows.row_source import RowSource
    from twinkle_remote.streams.schedule.decisions import Assignment, StageCall
    from twinkle_remote.streams.schedule.scheduler import Scheduler
    from twinkle_remote.streams.stages import Stage
    from twinkle_remote.streams.telemetry.stream_record import StreamRecord

_log = logging.getLogger("twinkle.remote")
_LATE_SECONDS = 0.2
_REPORTED_AT = (3, 10, 30, 100)  # lost workers of one chunk at which that is reported


class ChunksAtWork:
    """Begins chunks that the schedule assigns, and reports their ends to it; all in one thread.

    Args:
        schedule: The schedule.
        stages: The stages, each with its pool.
        source: The rows, for messages.
        results: What stages read and make.
        lost: The data ranks that take no work.
        store: Where the backend keeps results.
        record: What is remembered of chunks.
        spool: Where finished rows are written, or None.
        at_once: Calls of plain stages at a time.
        patience: Seconds after which a chunk that is at work is named; None for never.
        wake: Called in another thread when there is something to take in.

    Attributes:
        aside: The rows that were set aside.
    """

    def __init__(
        self,
        schedule: Scheduler,
        stages: Sequence[tuple[int, Stage]],
        source: RowSource,
        results: ChunkResults,
        lost: LostRanks,
        store: Store,
        record: StreamRecord,
        *,
        spool: Spool | None,
        at_once: int,
        patience: float | None,
        wake: Callable[[], None],
    ) -> None:
        self.schedule = schedule
        self._of_stage = [pool for pool, _ in stages]
        self._stages = [stage for _, stage in stages]
        self._source = source
        self._results = results
        self._lost = lost
        self._store = store
        self._record = record
        self._spool = spool
        self._running = RunningCalls()
        self._plain = PlainCalls(at_once, wake)
        self._late_at = 0.0
        self._lost_calls: WeakSet[PendingCall] = WeakSet()  # whose results were lost with workers
        alone = [pool if isinstance(stage, RemoteStage) and not stage.spec.on_loop else None for pool, stage in stages]
        self._slow = SlowChunks(patience, alone)
        self.quarantine = Quarantine()

    def replies(self) -> Sequence[Reply]:
        """The replies of chunks at work."""
        return self._running.replies()

    def take_in(self, done: Sequence[Reply]) -> None:
        """Take in the calls that are over with these replies, or by themselves."""
        for run in self._running.take_over(done):
            self._ended(run)
        self._take_values()
        self._look_for_late_ones()

    def end_plain(self) -> None:
        """Begin no more plain stages."""
        self._plain.close()

    def close(self) -> None:
        """Cancel async calls, and forget all chunks."""
        self._running.close()

    def begin(self, work: StageCall) -> Sequence[Reply]:
        """Begin a call; returns the replies that show its end."""
        stage = self._stages[work.stage]
        given = self._results.given(work)
        self._record.sent(work)
        self._slow.begin(work)
        if isinstance(stage, PlainStage):
            self._plain.begin(stage, work, given)
            return ()
        label = rows_label(work.spans())
        call = None if self._lost.is_another(stage, work.rank) else stage.begin(work.rank, given, label)
        if call is None or self._lost.is_another(stage, work.rank):  # known meanwhile: the call may be the other's
            self._received(work, failed=True)
            self._lose_rank(work, stage, None)
            for part in work.parts:
                self._results.replace(part, self.schedule.lost(part.chunk, work.stage))
            return ()
        adds = stage.columns_added(given)
        if adds is None:
            return self._running.begin(RunningCall(work, call))
        before = self._results.before(work) if work.stage else ((ChunkResult(None, value=given), work.rows),)
        return self._running.begin(RunningCall(work, call, adds, before))

    def _ended(self, run: RunningCall) -> None:
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
            self._received(run.work, slowest.seconds, slowest.started)
            component = stage.components[run.work.rank]
            before = run.rows_before
            self._made(run.work, ChunkResult(run.call, ranks, None, 0, component, run.adds, before))

    def _made(self, work: StageCall, result: ChunkResult) -> None:
        if (rows := result.rows()) != work.rows:
            raise wrong_rows(rows, work.rows, self._stages[work.stage].name, self._where(work))
        if any(one.call in self._lost_calls for one in result.holders() if one.call is not None):
            for part in work.parts:
                self._results.replace(part, self.schedule.lost(part.chunk, 0))
            return
        self._results.keep(work, result)
        for part in work.parts:
            self.schedule.finished(part.chunk)
        if self._spool is not None:
            self._write(self._spool, work, result)

    def _write(self, spool: Spool, work: StageCall, result: ChunkResult) -> None:
        """Have the rows written that are finished, those together that follow each other and have one version."""
        offset, version = 0, self.schedule.version
        written: list[tuple[ChunkResult, Assignment]] = []
        for part in work.parts:
            at, offset = offset, offset + part.rows
            if not self.schedule.is_finished(part.chunk):
                continue
            last = written[-1][1] if written else None
            if last is not None and (last.first + last.rows, last.version) == (part.first, part.version):
                written[-1] = written[-1][0], last._replace(rows=last.rows + part.rows)
            else:
                written.append((result.at(at), part))
        for rows, part in written:
            spool.write(self._stages[-1], part, rows, part.version, version)

    def _received(
        self, work: StageCall, seconds: float | None = None, started: float = 0.0, *, failed: bool = False
    ) -> None:
        self._record.received(work, seconds, started, failed=failed)
        self._slow.end(work)

    def _name(self, work: StageCall, seconds: float) -> None:
        """Tell of a call that takes long: its function, its rows, its worker and what that does."""
        call, stage = self._running.call_of(work.number), self._stages[work.stage]
        stack = self._plain.stack(work.number) if call is None else str(call.lateness(round(seconds, 1)))
        _log.warning("%s has been at %s for %.0f s:\n%s", stage.name, self._where(work), seconds, stack)

    def _where(self, work: StageCall) -> str:
        numbers = [self._source.numbers(first, rows) for first, rows in work.spans()]
        return named_rows([index for indices, _ in numbers for index in indices], numbers[0][1])

    def where(self, first: int, rows: int) -> str:
        """The name of rows in messages."""
        return named_rows(*self._source.numbers(first, rows))

    def _failed(self, work: StageCall, error: Exception) -> None:
        self._received(work, failed=True)
        for part in work.parts:
            if self.schedule.failed_before(part.chunk):
                self._quarantine(part, self.where(part.first, part.rows), error)
            self._results.replace(part, self.schedule.failed(part.chunk))

    def _quarantine(self, part: Assignment, where: str, error: Exception) -> None:
        finished = self.schedule.counts.delivered + len(self._results)
        self.quarantine.add(
            *self._source.numbers(part.first, part.rows), error, where, self._stages[part.stage].name, finished
        )

    def _lose(self, run: RunningCall, error: TwinkleError) -> None:
        """The worker of a call is lost, or has not answered in time."""
        work, stage = run.work, self._stages[run.work.stage]
        self._received(work, failed=True)
        assert isinstance(stage, RemoteStage)
        pool = self._of_stage[work.stage]
        lost_input = run.call.failed() and not run.call.first_failure().died
        late = isinstance(error, CallTimeoutError)
        begun = late and (stage.spec.on_loop or not self._lost.is_held_up(pool, work.rank))
        if late:
            self._lost.late(pool, work.rank, run.call)
        elif not lost_input:
            self._lose_rank(work, stage, error)
        for part in work.parts:
            where = self.where(part.first, part.rows)
            if begun and self.schedule.late_before(part.chunk):
                self._quarantine(part, where, error)
            elif self.schedule.chunks.losses[part.chunk] + 1 in _REPORTED_AT:
                _log.warning("%s is made again by %s: workers that made it were lost", where, stage.name)
            again = self.schedule.lost(part.chunk, 0 if lost_input else work.stage, late=begun)
            self._results.replace(part, again)

    def _lose_rank(self, work: StageCall, stage: RemoteStage, error: TwinkleError | None) -> None:
        self._lost.lose(self._of_stage[work.stage], stage, work.rank, error)
        self._make_again(stage.workers(work.rank))

    def _make_again(self, workers: WorkersOf) -> None:
        """Make rows again of which lost workers had the only copy, or that of a column.

        Those that are in a stage now are made again when it is done, unless it reads what is lost and fails.
        """
        for chunk, parts in self._results.lost_with(workers, self._store):
            self._lost_calls.update([one.call for one in parts if one.call is not None])
            if self.schedule.is_finished(chunk):
                work = self.schedule.assignment(chunk)
                self._results.replace(work, self.schedule.lost(chunk))

    def _take_values(self) -> None:
        for work, future in self._plain.take_ended():
            error = future.exception()
            if isinstance(error, Exception):
                self._failed(work, error)
            elif error is not None:
                raise error
            else:
                self._received(work)
                self._made(work, ChunkResult(None, value=future.result()))

    def _look_for_late_ones(self) -> None:
        """Chunks past their deadline go to others; their rank is used again when it has answered after all."""
        now = time.monotonic()
        if now < self._late_at:
            return
        self._late_at = now + _LATE_SECONDS
        self._lost.look()
        for work, seconds in self._slow.overdue():  # a stack may take long to come
            threading.Thread(target=self._name, args=(work, seconds), name="twinkle-stream-slow", daemon=True).start()
        for run in self._running.take_late():
            self._ended(run)
