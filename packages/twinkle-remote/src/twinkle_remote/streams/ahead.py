"""The engine of a stream with ahead=n: chunks go to data ranks, and batches are made of what is finished."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CallTimeoutError, NotInitializedError, TwinkleError
from twinkle_remote.protocol.backend import InProcessBackend
from twinkle_remote.sessions.current import active, running
from twinkle_remote.sessions.signals.flag import Flag
from twinkle_remote.streams.chunks.chunk_results import ChunkResults
from twinkle_remote.streams.chunks.chunks_at_work import ChunksAtWork
from twinkle_remote.streams.pump import Pump
from twinkle_remote.streams.ranks.joining import drained_ranks, joining_stages
from twinkle_remote.streams.ranks.lost_ranks import LostRanks
from twinkle_remote.streams.rows.hand import Hand
from twinkle_remote.streams.rows.positions import overlaps, position_of
from twinkle_remote.streams.schedule.scheduler import Scheduler
from twinkle_remote.streams.stages import RemoteStage, intakes_of, pools_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.streams.chunks.spool import Spool
    from twinkle_remote.streams.options import StreamRules
    from twinkle_remote.streams.rows.row_source import RowSource, SourceBatch
    from twinkle_remote.streams.rows.rows_info import QuarantinedRow
    from twinkle_remote.streams.schedule.counts import StreamCounts
    from twinkle_remote.streams.schedule.decisions import Part
    from twinkle_remote.streams.stages import Stage
    from twinkle_remote.streams.telemetry.stream_record import StreamRecord

_log = logging.getLogger("twinkle.remote")
_said: set[str] = set()
_END, _WANTS_ROWS = "end", "wants rows"
_SLICE_SECONDS = 0.5
_WAIT_SECONDS = 0.05  # between two looks at what no step reports


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
        lost: The lost workers of the engine before this one, and those that have joined; None without one.

    Attributes:
        schedule: The schedule.
        works_ahead: Stages work while the loop does.
        hand: The batch that the loop is given.
    """

    works_ahead = True

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
        lost: LostRanks | None = None,
    ) -> None:
        self._source = source
        self._stages = stages
        self._rules = rules
        self._consumed = consumed
        self._runtime = running()
        self._backend = self._runtime.backend
        pools, of_stage = pools_of(stages)
        intakes = intakes_of(stages, of_stage, rules.at_once)
        self.schedule = Scheduler(rules, pools, of_stage, first=source.next_row, version=version, intakes=intakes)
        self._of_stage = of_stage
        self._pump = Pump(self, self._backend, line)
        self._results = ChunkResults(source, stages[-1], spool)
        remote = [(pool, stage) for pool, stage in zip(of_stage, stages, strict=True) if isinstance(stage, RemoteStage)]
        if lost is not None and lost.belongs_to(self._runtime):
            self._lost = lost
        else:
            self._lost = LostRanks(remote, self._runtime)
        self._lost.serve(self.schedule, self._pump.wake, rules.patience)
        self._work = ChunksAtWork(
            self.schedule,
            list(zip(of_stage, stages, strict=True)),
            source,
            self._results,
            self._lost,
            self._backend.store,
            record,
            spool=spool,
            at_once=rules.at_once or 1,
            patience=rules.patience,
            wake=self._pump.wake,
        )
        self._error: BaseException | None = None
        self._source_error: BaseException | None = None
        self._published = version
        self._reported_overdue = False
        self._parts: tuple[Sequence[Part], int, float] = ((), version, 0.0)
        self.hand: Hand | None = None
        self._spool = spool
        if spool is not None:
            spool.restore(version)
        self._record = record

    # the loop's side: each change is made in the pump's thread

    def begin_epoch(self) -> None:
        """Read on after the end of an epoch."""
        self._pump.run(self._next_epoch)

    def _next_epoch(self) -> None:
        self._source.begin_pass()
        self.schedule.next_epoch()

    def next_batch(self) -> Hand | None:
        """The next batch, the same one until it is given; None at the end of the epoch.

        Raises:
            TwinkleError: A stage fails for all rows, all workers of a stage are lost, or the session has ended.
        """
        if self.hand is None or self.hand.given:
            self._record.asked()
        self._pump.run(self._ask)
        while True:
            found = self._pump.run(self._next)
            if isinstance(found, Flag):
                found.wait(_SLICE_SECONDS)
            elif found is _WANTS_ROWS:
                self._read()
            else:
                return found if isinstance(found, Hand) else None

    def _ask(self) -> None:
        if self.hand is None or self.hand.given:
            self.hand = None
            self._see_version()
            self.schedule.ask()

    def _next(self) -> Hand | Flag | str:
        """The next batch; or that rows are wanted, that the epoch is over, or what to wait for."""
        self._check()
        self._see_version()
        if self.hand is None:
            if self.schedule.wants_rows():  # also where a batch is ready: rows are begun while the loop works on it
                return _WANTS_ROWS
            if not self.schedule.ready():
                if self.schedule.at_end and not self.schedule.left:
                    self._raise_source_error()
                    return _END
                return self._pump.next_step()
            there, before = time.perf_counter(), self._source.state()
            parts = self.schedule.take()
            self._report_rows_beyond(parts)
            self.hand = Hand([(part.first, part.first + part.rows) for part in parts], before)
            self._parts = parts, self.schedule.version, there
        if self.hand.made is None:
            parts, version, there = self._parts
            self.hand.made = self._results.batch(parts, version)
            self._record.given(sum(part.rows for part in parts), version, there)
        return self.hand

    def _read(self) -> None:
        """Read what the schedule wants, in the loop's own thread: a source may be anything, and seldom locks."""
        wants = True
        while wants:
            batch: SourceBatch | None = None
            began = time.perf_counter()
            if self._source_error is None:
                try:
                    batch = self._source.fetch()
                except Exception as error:
                    self._source_error = error
            self._record.read(0 if batch is None else batch.rows, time.perf_counter() - began)
            wants = self._pump.run(partial(self._take_in, batch))

    def _take_in(self, batch: SourceBatch | None) -> bool:
        """Take in a batch of the source, or its end; whether more is wanted."""
        if batch is None:
            self.schedule.source_ended()
            return False
        self._source.keep(batch)
        made = {} if self._spool is None else self._spool.made(batch.first, batch.rows)
        self.schedule.read(batch.rows, consumed=self._consumed, made=made)
        for start, stop in overlaps(self._consumed, batch.first, batch.first + batch.rows):
            self._source.use(start, stop - start)
        return self._error is None and self.schedule.wants_rows()

    def _check(self) -> None:
        if self._error is not None:
            error, traceback = self._error, self._error.__traceback__
            if isinstance(error, TwinkleError):
                traceback = None
            raise error.with_traceback(traceback)

    def _raise_source_error(self) -> None:
        error, self._source_error = self._source_error, None
        if error is not None:
            self.schedule.next_epoch()
            raise error

    def add(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        """Have another component work for stages; see `Stream.add`."""
        self._pump.run(partial(self._add, functions))

    def _add(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        pool, joined = joining_stages(self._stages, self._of_stage, functions)
        for index, other in joined.items():
            stage = self._stages[index]
            assert isinstance(stage, RemoteStage)
            fresh = stage.join(other)
            self._lost.give_weights(stage.component, other.function)
        self.schedule.pools[pool].grow(len(fresh))
        for rank in fresh:
            self._lost.join(pool, rank)

    def drain(self, function: Callable[[Any], Any], timeout: float | None) -> None:
        """Give a component no more chunks, and wait for those that it has; see `Stream.drain`."""
        until = None if timeout is None else time.monotonic() + timeout
        pool, ranks = drained_ranks(self._stages, self._of_stage, function)

        def are_left() -> bool:
            if others_work := self._lost.others_work(pool, ranks):
                for rank in ranks:
                    self._lost.drain(pool, rank)
            return others_work

        if not self._wait_until(are_left, until):
            raise CallTimeoutError(
                f"the workers that joined have no weights yet after {timeout:g} s, and nothing else works"
            )
        if not self._wait_until(lambda: not any(map(self.schedule.pools[pool].busy, ranks)), until):
            raise CallTimeoutError(f"chunks still run on {len(ranks)} data ranks after {timeout:g} s")

    def _wait_until(self, done: Callable[[], bool], until: float | None) -> bool:
        """Look for what no step reports until it is so; False at `until`, in monotonic seconds."""
        while True:
            step = self._pump.run(partial(self._step_before, done))
            if step is None:
                return True
            left = _WAIT_SECONDS if until is None else min(_WAIT_SECONDS, until - time.monotonic())
            if left <= 0:
                return False
            step.wait(left)

    def _step_before(self, done: Callable[[], bool]) -> Flag | None:
        """The flag to wait for until something is so; None if it is."""
        if done():
            return None
        self._check()
        return self._pump.next_step()

    def held(self) -> AbstractContextManager[object]:
        """A block in which nothing is begun."""
        return self._pump.changed

    def publish(self, version: int) -> None:
        """A version was published; the schedule knows it before it decides anything more."""
        self._published = max(self._published, version)
        self._pump.wake()

    def _see_version(self) -> None:
        if self._published > self.schedule.version:
            self.schedule.published(self._published)
            self._forget_given_up()

    def _report_rows_beyond(self, parts: Sequence[Part]) -> None:
        """Warn once of rows that versions overtook again while the loop waited for them."""
        bound, now = self._rules.max_lag, self.schedule.version
        if self._reported_overdue or bound is None or self._rules.stale not in ("wait", "redo"):
            return
        rows = [self._work.where(part.first, part.rows) for part in parts if now - part.begun > bound]
        if rows:
            self._reported_overdue = True
            _log.warning(
                "versions come faster than rows: %s was made again, is older than max_lag=%d once more, and is used "
                "(stats() counts such rows by their lag)",
                "; ".join(rows[:4]) + ("; ..." if len(rows) > 4 else ""),
                bound,
            )

    @property
    def set_aside(self) -> Sequence[QuarantinedRow]:
        """The rows for which a stage raised at each attempt."""
        return tuple(self._work.quarantine.rows)

    @property
    def counts(self) -> StreamCounts:
        """The rows that were delivered, and those that were made again."""
        return self.schedule.counts

    @property
    def version(self) -> int:
        """The version now."""
        return max(self._published, self.schedule.version)

    def position(self, *, without_hand: bool = False) -> dict[str, Any]:
        """The source's position, and the rows that were read and not delivered.

        Args:
            without_hand: Also the batch that the loop has is not delivered.
        """
        with self._pump.changed:
            source, spans, hand = self._source.state(), list(self.schedule.open_rows()), self.hand
            if hand is not None and (without_hand or not hand.given):
                source, spans = dict(hand.source), [*hand.spans, *spans]
            return position_of(source, self.schedule.rows_read, spans, self._consumed)

    def close(self) -> None:
        """End the threads, and cancel async calls; others end by themselves, and nothing waits for them."""
        self.leave()
        self._lost.close()

    def leave(self) -> LostRanks:
        """Close as `close` does, and keep the workers that have joined and those that are lost, for another engine."""
        self._pump.close()
        self._work.end_plain()
        self._pump.join(2 * _SLICE_SECONDS)
        self._work.close()
        self._results.clear()
        return self._lost

    # the pump's side

    def loop_ready(self) -> bool:
        """Whether the loop can go on."""
        return self.schedule.ready() or self.schedule.wants_rows() or (self.schedule.at_end and not self.schedule.left)

    def waiting_for(self) -> Sequence[Reply]:
        """The replies of chunks at work."""
        return self._work.replies()

    def fail(self, error: BaseException) -> None:
        """Keep an error for the loop."""
        if self._error is None:
            self._error = error

    def step(self, done: Sequence[Reply]) -> None:
        """Take in what is done, and begin what can be begun."""
        if self._runtime.closed:
            raise NotInitializedError("the session ended while a stream was open: close the stream before shutdown")
        self._see_version()
        self._work.take_in(done)
        while works := self.schedule.next_works():
            for work in works:
                self._pump.watch(self._work.begin(work))
        self._forget_given_up()

    def _forget_given_up(self) -> None:
        for first, rows in self.schedule.take_given_up():
            self._source.use(first, rows)


def runs_ahead(ahead: int) -> bool:
    """Whether the session has workers in other processes; without them `ahead` has no effect, which is said once."""
    runtime = active()
    if runtime is not None and not isinstance(runtime.backend, InProcessBackend):
        return True
    if "synchronous" not in _said:
        _said.add("synchronous")
        mode = "without a session" if runtime is None else f"in mode {runtime.mode!r}"
        _log.warning("ahead=%d has no effect %s: the stream is synchronous", ahead, mode)
    return False
