"""The engine of a stream with `ahead=n`: one thread owns the schedule, and works while the loop does.

    loop                    consumes              waits for                     is unblocked by
    ----------------------  --------------------  ----------------------------  ---------------------------------------
    the user's loop, in     the source's batches  an answer: read the source,   the engine's thread, when the schedule
    `next`                                        a batch, or an error          wants rows or has a batch, or on `close`
    the engine's thread     messages: an ask,     its inbox                     the loop, the backend's reply of a call,
    ("twinkle-stream")      what was read, a                                    a plain call's end, a rank that is back,
                            call, a wake                                        the earliest deadline of a call
    the thread of plain     rows of plain stages  its queue                     the engine's thread
    stages ("...-stage")    and of `keep=`
    a lost data rank's      attempts to bring it  a pause, the workers, their   time, Ray, a WeightSync, `close`
    thread ("...-restart")  back (`recovery`)     weights
    a WeightSync that       nothing               `lock`: it begins no call     the end of the engine's step
    publishes                                     meanwhile

The loop and the thread share two things: queues, and the version in `stats`, which only the publisher writes. So Ctrl-C
may come at any line of the loop: the stream then closes the engine, and loads the state before that `next` again.

For each row that is not gone, `_given` has its batch of the source and its place there; `_made` has what the latest
stage made. A call begins only with rows that the stage before it has made: what failed is never handed on.
"""

from __future__ import annotations

import logging
import threading
import time
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from twinkle_remote.context import calls_are_from
from twinkle_remote.errors import NotInitializedError, WorkerDiedError
from twinkle_remote.streams.recovery import DataRank
from twinkle_remote.streams.schedule import Delivered, Schedule
from twinkle_remote.streams.source import PlacedRows, SourceBatch, gathered
from twinkle_remote.streams.stages import PlainStage, RemoteStage, rules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.streams.recovery import Recovery
    from twinkle_remote.streams.schedule import Rules, StageCall
    from twinkle_remote.streams.stages import Stage
    from twinkle_remote.streams.stats import StreamStats

    Answers = SimpleQueue[tuple[Any, Delivered] | Literal["read"] | BaseException]

_log = logging.getLogger("twinkle.remote")
_WAIT_SECONDS = 60.0  # after which the loop says once what it waits for
_END_SECONDS = 1.0
_NAMED = 4  # calls that are named then


class _CallAtWork:
    """A call at work.

    Attributes:
        call: What the schedule has decided.
        given: The rows.
        pending: The call; None of a plain stage.
        result: What a plain stage has made (of `keep=` the places that it refuses), or its error.
        late: It is past its deadline: its rows are made again, and its data rank is free when it has answered.
        dead: Workers that have died since it began, by group and rank, so that what it made may be lost.
    """

    def __init__(self, call: StageCall, given: Any) -> None:
        self.call, self.given, self.began = call, given, time.perf_counter()
        self.pending: PendingCall | None = None
        self.result: PlacedRows | list[int] | Exception | None = None
        self.late = False
        self.dead: set[tuple[str, int]] = set()


class AheadEngine:
    """Drives a schedule with remote calls.

    Args:
        stages: At least one; that of `keep=` comes after the others.
        rules: The options; `ahead` is above 0.
        stats: Where rows are counted; the publisher sets its version.
        recovery: The data ranks that are lost.
        first: Position of the first row.
        line: Of the user's code that made the stream, for messages.

    Attributes:
        lock: Held while a call begins or ends; whoever holds it keeps the stream from beginning anything.
    """

    works_ahead = True

    def __init__(
        self, stages: Sequence[Stage], rules: Rules, stats: StreamStats, recovery: Recovery, first: int, line: str
    ) -> None:
        self.lock = threading.RLock()
        self._stages, self._stats, self._recovery, self._line = stages, stats, recovery, line
        pools, of_stage = rules_of(stages)
        self._schedule = Schedule(rules, pools, of_stage, first=first, version=stats.version, stats=stats)
        for lost in recovery.lost():
            self._schedule.set_usable(*lost, usable=False)
        self._given: dict[int, tuple[PlacedRows, int]] = {}
        self._made: dict[int, tuple[PlacedRows, int]] = {}
        self._at_work: dict[StageCall, _CallAtWork] = {}
        self._has_deadlines = any(isinstance(stage, RemoteStage) and stage.call.spec.timeout for stage in stages)
        self._asked: Answers | None = None
        self._error: BaseException | None = None
        self._source_error: Exception | None = None
        self._closed = False
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._plain: SimpleQueue[_CallAtWork | None] = SimpleQueue()
        self._thread, self._plain_thread = (
            threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True)
            for run, name in ((self._run, "twinkle-stream"), (self._run_plain, "twinkle-stream-stage"))
        )
        recovery.wake = self.wake

    # the loop's side

    def next(self, read: Callable[[], SourceBatch | None]) -> tuple[Any, Delivered]:
        """The next batch; without rows at the end of the epoch.

        It waits until enough rows are finished; an error of a stage, the loss of all its workers, and the end of the
        stream or of the session unblock it too.

        Raises:
            TwinkleError: A stage raised twice for a row, or all workers of a stage are lost.
            NotInitializedError: The stream was closed while the loop waited.
        """
        if self._thread.ident is None:
            self._thread.start()
        while (found := self._answer_to_loop()) == "read":
            batch = None
            try:
                batch = read() if self._source_error is None else None
            except Exception as raised:  # the loop has it after the rows before it
                self._source_error = raised
            self._inbox.put("end" if batch is None else batch)
        if isinstance(found, BaseException):
            raise found
        error = None if found[1].rows else self._source_error
        if error is not None:
            self._source_error = None
            raise error
        return found

    def _answer_to_loop(self) -> tuple[Any, Delivered] | Literal["read"] | BaseException:
        answers: Answers = SimpleQueue()
        self._inbox.put(answers)
        try:
            return answers.get(timeout=_WAIT_SECONDS)
        except Empty:
            _log.warning("a stream has waited for %.0f s for its next batch: %s", _WAIT_SECONDS, self._describe())
            return answers.get()

    def _describe(self) -> str:
        """The calls at work, with their ranks and stacks."""
        works, lost = list(self._at_work.values()), len(self._recovery.lost())
        lines = [f"{len(works)} calls are at work, {lost} data ranks are lost"]
        for work in works[:_NAMED]:
            name, seconds = self._stages[work.call.stage].name, time.perf_counter() - work.began
            text = "" if work.pending is None else f": {work.pending.lateness(round(seconds, 1))}"
            lines.append(f"{name} has been at row {work.call.rows[0]} for {seconds:.0f} s{text}")
        return "\n".join(lines)

    def wake(self) -> None:
        """A version was published, or a lost data rank is back: it is known before anything more is decided."""
        self._inbox.put(None)

    def close(self) -> None:
        """End the threads, and cancel async calls; others end by themselves, and nothing waits for them."""
        self._closed = True
        self.wake()
        self._plain.put(None)
        is_idle = not any(work.pending is None for work in list(self._at_work.values()))
        for thread in (self._thread, self._plain_thread) if is_idle else (self._thread,):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(_END_SECONDS)

    # the thread of plain stages

    def _run_plain(self) -> None:
        calls_are_from(self._line)
        while (work := self._plain.get()) is not None:
            stage, count = self._stages[work.call.stage], len(work.call.rows)
            assert isinstance(stage, PlainStage)
            try:
                work.result = stage.refused(work.given, count) if stage.keeps else stage.made(work.given, count)
            except Exception as error:
                work.result = error
            self._inbox.put(work)

    # the engine's thread

    def _run(self) -> None:
        calls_are_from(self._line)
        while not self._closed:
            messages = [self._message()]
            while not self._inbox.empty():
                messages.append(self._inbox.get())
            asks = [message for message in messages if isinstance(message, SimpleQueue)]
            self._asked = asks[-1] if asks else self._asked
            with self.lock:
                try:
                    if self._error is None:
                        self._step(messages)
                    self._answer()
                except BaseException as error:
                    self._error = error
                    self._answer()
        for work in self._at_work.values():
            if work.pending is not None and work.pending.spec.on_loop:
                work.pending.cancel()
        self._given.clear()
        self._made.clear()

    def _message(self) -> Any:
        """The next message; None when a call is past its deadline."""
        works = self._at_work.values() if self._has_deadlines else ()
        ends = [work.pending.deadline for work in works if work.pending is not None and work.pending.deadline]
        try:
            return self._inbox.get(timeout=max(0.0, min(ends) - time.monotonic()) if ends else None)
        except Empty:
            return None

    def _step(self, messages: Sequence[Any]) -> None:
        if self._recovery.runtime.closed:
            raise NotInitializedError("the session ended while a stream was open: close the stream before shutdown")
        schedule = self._schedule
        if self._stats.version > schedule.version:
            schedule.publish(self._stats.version)
        if self._asked is not None:
            schedule.ask()
        for message in messages:
            if isinstance(message, _CallAtWork):
                self._look_at(message)
            elif isinstance(message, SourceBatch):
                schedule.read(message.rows.count, message.gone)
                placed = ((row, (message.rows, row - message.first)) for row in message.positions)
                self._given.update(one for one in placed if one[0] not in message.gone)
            elif message == "end":
                schedule.at_end = True
        for work in list(self._at_work.values()) if self._has_deadlines else ():
            self._look_at(work)
        for back in self._recovery.look():
            schedule.set_usable(*back, usable=True)
        while calls := schedule.next_calls():
            for call in calls:  # all of them are at work before the first one begins, and may be lost with its workers
                of_rows = self._made if call.stage else self._given
                self._at_work[call] = _CallAtWork(call, gathered([of_rows[row] for row in call.rows]))
            for call in calls:
                self._begin(self._at_work[call])

    def _answer(self) -> None:
        """Answer the loop once, if it asks and there is something for it."""
        asked, schedule = self._asked, self._schedule
        if asked is None:
            return
        if self._error is not None or self._closed:
            asked.put(self._error or NotInitializedError("the stream was closed while its loop waited"))
        elif schedule.wants_rows():
            asked.put("read")
        elif schedule.ready() or (schedule.at_end and not schedule.left):
            batch = schedule.take()
            schedule.at_end = schedule.at_end and bool(batch.rows)  # not for the next epoch
            found = [self._made.pop(row) for row in batch.rows]
            for row in (*batch.rows, *batch.gone):
                self._given.pop(row, None)
                self._made.pop(row, None)
            asked.put((gathered(found), batch))
        else:
            return
        self._asked = None

    # calls

    def _begin(self, work: _CallAtWork) -> None:
        call, stage = work.call, self._stages[work.call.stage]
        if isinstance(stage, PlainStage):
            if self._plain_thread.ident is None:
                self._plain_thread.start()
            self._plain.put(work)
            return
        first, last = min(call.rows), max(call.rows)
        work.pending = stage.begin(call.rank, work.given, f"row {first}" if first == last else f"rows {first}-{last}")
        if self._recovery.was_replaced(stage, call.rank):  # known meanwhile: the call may be the new worker's
            self._over(work)
            self._lose(call, "it was started again")
            self._schedule.again(call.rows, call.stage)
        else:
            work.pending.notify(partial(self._inbox.put, work), each=True)

    def _look_at(self, work: _CallAtWork) -> None:
        """Take a call in if it is over; it may have been looked at before, for another rank's reply."""
        pending = work.pending
        if work.late and pending is not None and pending.done():
            self._schedule.over(work.call.stage, work.call.rank)
            work.late = False
        elif self._at_work.get(work.call) is work:
            answered = work.result is not None if pending is None else pending.done() or pending.failed()
            if answered or (pending is not None and pending.late()):
                self._end(work, late=not answered)

    def _end(self, work: _CallAtWork, *, late: bool) -> None:
        call, stage, pending, made = work.call, self._stages[work.call.stage], work.pending, work.result
        work.late = late
        try:
            if isinstance(stage, RemoteStage) and pending is not None:
                pending.wait(0.0)
                made = stage.made(call.rank, pending, len(call.rows))
            elif isinstance(made, Exception):
                raise made
        except Exception as error:
            self._over(work)
            if isinstance(error, WorkerDiedError):
                self._died(call, pending, error)
            else:
                self._failed(call, error)
            return
        self._over(work)
        if isinstance(made, list):
            self._schedule.made(call, [call.rows[place] for place in made])
        elif isinstance(made, PlacedRows) and self._recovery.is_lost(made, work.dead):
            self._schedule.again(call.rows)
        elif isinstance(made, PlacedRows):
            self._made.update((row, (made, place)) for place, row in enumerate(call.rows))
            self._schedule.made(call)

    def _over(self, work: _CallAtWork) -> None:
        """A call is at work no more; its data rank is free, unless it is late."""
        del self._at_work[work.call]
        if not work.late:
            self._schedule.over(work.call.stage, work.call.rank)
        seconds = time.perf_counter() - work.began if work.pending is None else work.pending.record.run_seconds
        self._stats.ran(work.call.stage, len(work.call.rows), seconds)

    def _failed(self, call: StageCall, error: Exception, stage: int | None = None) -> None:
        """A stage raised: for the second time for its row this ends the stream, or the row is skipped."""
        if self._schedule.failed(call, stage):
            return
        where = f"row {call.rows[0]} of the stream, for which {self._stages[call.stage].name} raised twice"
        if self._schedule.rules.on_error == "raise" or isinstance(error, WorkerDiedError):
            error.add_note(f"  while a stream made {where}; it stays in the state, and on_error='skip' leaves it out")
            raise error
        _log.warning("%s, is skipped: %s: %s", where, type(error).__name__, error)
        self._schedule.skip(call.rows[0])

    # lost workers

    def _died(self, call: StageCall, pending: PendingCall | None, error: WorkerDiedError) -> None:
        failure = pending.first_failure() if pending is not None and pending.failed() else None
        if pending is None:  # what a plain stage was given may be lost
            self._failed(call, error, 0)
        elif failure is None or failure.died:
            self._lose(call, str(error))
            self._schedule.again(call.rows, call.stage)
        elif failure.trace:  # a method has raised it, which called another component
            self._failed(call, error)
        else:  # what it was given is lost
            self._schedule.again(call.rows)

    def _lose(self, call: StageCall, why: str) -> None:
        """Others make the rows of a data rank, and those again that are on its workers alone."""
        stage, rank = self._stages[call.stage], DataRank(self._schedule.stages[call.stage].pool, call.rank)
        assert isinstance(stage, RemoteStage)
        self._schedule.set_usable(*rank, usable=False)
        self._recovery.lose(rank, why=why)
        dead, at_work = {(stage.call.component.group, one) for one in stage.peers[call.rank]}, set(call.rows)
        for other in self._at_work.values():
            at_work.update(other.call.rows)
            other.dead |= dead
        every = {id(rows): rows for rows, _ in self._made.values()}
        lost = {key for key, rows in every.items() if self._recovery.is_lost(rows, dead)}
        self._schedule.again([row for row, (rows, _) in self._made.items() if id(rows) in lost and row not in at_work])
