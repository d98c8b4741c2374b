"""The calls at work ahead of the loop: they begin for rows of the schedule, and what they made stays with these rows.

All of it is in the engine's thread, but for the thread of plain stages, which takes calls from a queue. For each row
that is not gone, `_given` has its batch of the source and its place there; `_made` has what the latest stage made.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from twinkle_remote.context import context_here
from twinkle_remote.errors import CallTimeoutError, WorkerDiedError
from twinkle_remote.failures.frames import calls_are_from
from twinkle_remote.streams.source import PlacedRows, gathered
from twinkle_remote.streams.stages import PlainStage, run_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.streams.recovery import Recovery
    from twinkle_remote.streams.schedule import Schedule, StageCall
    from twinkle_remote.streams.source import SourceBatch
    from twinkle_remote.streams.stages import RemoteStage, Stage
    from twinkle_remote.streams.stats import Record

_log = logging.getLogger("twinkle.remote")
_NAMED = 4  # calls that are named
_END_SECONDS = 1.0


class CallAtWork:
    """A call at work.

    Attributes:
        call: What the schedule has decided.
        given: The rows.
        pending: The call; None of a plain stage.
        result: What a plain stage has made, or its error.
        late: It is past its deadline: its rows are made again, and its data rank is free when it has answered.
        deaths: Of its data rank's workers, when it began.
    """

    def __init__(self, call: StageCall, given: Any, deaths: int) -> None:
        self.call, self.given, self.deaths, self.began = call, given, deaths, time.perf_counter()
        self.pending: PendingCall | None = None
        self.result: tuple[Any, Exception | None] | None = None
        self.late = False


class CallsAtWork:
    """Begins the calls of a schedule, and takes them in when they are over.

    Args:
        schedule: The schedule.
        stages: The stages, the one of `keep=` last.
        record: Where calls are counted.
        recovery: The data ranks that are lost.
        notify: Called in any thread with a call that may be over; it is then to be given to `look_at`.
        line: File and line of the user's code that made the stream, for messages.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Sequence[Stage],
        record: Record,
        recovery: Recovery,
        notify: Callable[[CallAtWork], None],
        line: str,
    ) -> None:
        self._schedule, self._stages, self._record, self._recovery = schedule, stages, record, recovery
        self._notify, self._line = notify, line
        self._deaths: dict[tuple[int, int], int] = {}
        self._given: dict[int, tuple[PlacedRows, int]] = {}
        self._made: dict[int, tuple[PlacedRows, int]] = {}
        self._works: dict[StageCall, CallAtWork] = {}
        self._has_deadlines = any(not isinstance(stage, PlainStage) and stage.spec.timeout for stage in stages)
        self._plain: SimpleQueue[CallAtWork | None] = SimpleQueue()
        target, name = context_here().run, "twinkle-stream-stage"
        self._thread = threading.Thread(target=target, args=(self._run_plain,), name=name, daemon=True)

    def read(self, batch: SourceBatch) -> None:
        """A batch of the source."""
        self._given.update((row, (batch.rows, row - batch.first)) for row in range(batch.first, batch.stop))
        for row in batch.gone:
            del self._given[row]

    def take(self, rows: Sequence[int], gone: Iterable[int]) -> Any:
        """Finished rows as one value, after the last stage; these and the rows that are gone are forgotten."""
        found = [self._made.pop(row) for row in rows]
        for row in (*rows, *gone):
            self._given.pop(row, None)
            self._made.pop(row, None)
        return gathered(found) if found else None

    def describe(self) -> str:
        """The calls at work, with their ranks and stacks; in any thread."""
        works, lost = list(self._works.values()), len(self._recovery.lost())
        named = []
        for work in works[:_NAMED]:
            name, seconds = self._stages[work.call.stage].name, time.perf_counter() - work.began
            text = "" if work.pending is None else f": {work.pending.lateness(round(seconds, 1))}"
            named.append(f"{name} has been at row {work.call.rows[0]} for {seconds:.0f} s{text}")
        return "\n".join([f"{len(works)} calls are at work, {lost} data ranks are lost", *named])

    def deadline(self) -> float | None:
        """The earliest deadline of a call, in monotonic seconds; None without one."""
        if not self._has_deadlines:
            return None
        pending = [work.pending for work in self._works.values() if work.pending is not None]
        return min([call.deadline for call in pending if call.deadline is not None], default=None)

    def look_for_late(self) -> None:
        """Take in the calls that are past their deadline."""
        for work in list(self._works.values()) if self._has_deadlines else ():
            if work.pending is not None and work.pending.late():
                self.look_at(work)

    def close(self) -> None:
        """Cancel async calls; others end by themselves."""
        for work in self._works.values():
            if work.pending is not None and work.pending.spec.on_loop:
                work.pending.cancel()
        self._given.clear()
        self._made.clear()

    def end_plain(self) -> None:
        """End the thread of plain stages; it is waited for unless it is at work. In any thread."""
        self._plain.put(None)
        is_idle = not any(work.pending is None for work in list(self._works.values()))
        if is_idle and self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_END_SECONDS)

    def begin(self, call: StageCall) -> None:
        """Begin a call."""
        stage, of_rows = self._stages[call.stage], self._made if call.stage else self._given
        given, rank = gathered([of_rows[row] for row in call.rows]), self._rank(call)
        work = self._works[call] = CallAtWork(call, given, self._deaths.get(rank, 0))
        if isinstance(stage, PlainStage):
            if self._thread.ident is None:
                self._thread.start()
            self._plain.put(work)
            return
        first, last = min(call.rows), max(call.rows)
        work.pending = stage.begin(call.rank, given, f"row {first}" if first == last else f"rows {first}-{last}")
        if self._recovery.was_replaced(stage, call.rank):  # known meanwhile: the call may be the new worker's
            self._over(work)
            self._lose_rank(stage, call, "it was started again")
            self._schedule.again(call.rows, call.stage)
            return
        work.pending.when_answered(partial(self._notify, work))

    def _rank(self, call: StageCall) -> tuple[int, int]:
        return self._schedule.stages[call.stage].pool, call.rank

    def _run_plain(self) -> None:
        calls_are_from(self._line)
        while (work := self._plain.get()) is not None:
            stage, count = self._stages[work.call.stage], len(work.call.rows)
            assert isinstance(stage, PlainStage)
            try:
                made: Any = stage.refused(work.given, count) if stage.keeps else run_plain(stage, work.given, count)
                work.result = made, None
            except Exception as error:
                work.result = None, error
            self._notify(work)

    def look_at(self, work: CallAtWork) -> None:
        """Take a call in if it is over; it may have been looked at before, for another rank's reply."""
        if self._works.get(work.call) is not work and not work.late:
            return
        pending = work.pending
        if work.late:
            if pending is not None and pending.done():
                self._schedule.over(work.call.stage, work.call.rank)
                work.late = False
        elif pending is None:
            self._plain_over(work)
        elif pending.done() or pending.failed() or pending.late():
            self._remote_over(work, pending)

    def _plain_over(self, work: CallAtWork) -> None:
        stage = self._stages[work.call.stage]
        assert isinstance(stage, PlainStage) and work.result is not None
        made, error = work.result
        self._over(work)
        if error is not None:  # of a lost worker: what it was given may be lost
            self._failed(work.call, error, 0 if isinstance(error, WorkerDiedError) else None)
        elif stage.keeps:
            if not work.call.stage:  # there is no other stage
                self._made.update((row, self._given[row]) for row in work.call.rows)
            self._schedule.made(work.call, [work.call.rows[place] for place in made])
        else:
            self._keep(work.call, made)

    def _remote_over(self, work: CallAtWork, pending: PendingCall) -> None:
        call, stage = work.call, self._stages[work.call.stage]
        assert not isinstance(stage, PlainStage)
        try:
            pending.wait(0.0)
            made = stage.made(call.rank, pending, len(call.rows))
        except CallTimeoutError as error:
            if pending.done() or pending.failed():  # a method of its own has raised it
                self._over(work)
            else:  # its data rank is free when it has answered after all
                work.late = True
                del self._works[call]
            self._failed(call, error)
        except WorkerDiedError as error:
            self._over(work)
            self._lost(stage, call, pending, error)
        except Exception as error:
            self._over(work)
            self._failed(call, error)
        else:
            self._over(work, max(pending.outcome(rank).seconds for rank in stage.collects[call.rank]))
            died = self._deaths.get(self._rank(call), 0) != work.deaths
            if died and self._is_lost(made, stage, call.rank):
                self._schedule.again(call.rows)
            else:
                self._keep(call, made)

    def _over(self, work: CallAtWork, seconds: float | None = None) -> None:
        del self._works[work.call]
        self._schedule.over(work.call.stage, work.call.rank)
        if not (isinstance(stage := self._stages[work.call.stage], PlainStage) and stage.keeps):
            ran = time.perf_counter() - work.began if seconds is None else seconds
            self._record.ran(work.call.stage, len(work.call.rows), ran)

    def _keep(self, call: StageCall, made: PlacedRows) -> None:
        self._made.update((row, (made, place)) for place, row in enumerate(call.rows))
        self._schedule.made(call)

    def _failed(self, call: StageCall, error: Exception, stage: int | None = None) -> None:
        """A stage raised: the error ends the stream, or the row is skipped, if it was made alone after a first one."""
        if not self._schedule.failed(call, stage):
            return
        where = f"row {call.rows[0]} of the stream, for which {self._stages[call.stage].name} raised twice"
        if self._schedule.rules.on_error == "raise":
            error.add_note(f"  while a stream made {where}; it stays in the state, and on_error='skip' leaves it out")
            raise error
        _log.warning("%s, is skipped: %s: %s", where, type(error).__name__, error)

    # lost workers

    def _lost(self, stage: RemoteStage, call: StageCall, pending: PendingCall, error: WorkerDiedError) -> None:
        failure = pending.first_failure() if pending.failed() else None
        if failure is None or failure.died:
            self._lose_rank(stage, call, str(error))
            self._schedule.again(call.rows, call.stage)
        elif failure.trace:  # a method has raised it, which called another component
            self._failed(call, error)
        else:  # what it was given is lost
            self._schedule.again(call.rows)

    def _lose_rank(self, stage: RemoteStage, call: StageCall, why: str) -> None:
        """Others make the rows of a data rank, and those again that are on its workers alone."""
        rank = self._rank(call)
        self._deaths[rank] = self._deaths.get(rank, 0) + 1
        self._schedule.set_usable(*rank, usable=False)
        self._recovery.lose(*rank, why=why)
        at_work = {row for other in self._works for row in other.rows}
        at_work.update(call.rows)
        every = {id(rows): rows for rows, _ in self._made.values()}
        lost = {key for key, rows in every.items() if self._is_lost(rows, stage, call.rank)}
        found = [row for row, (rows, _) in self._made.items() if id(rows) in lost and row not in at_work]
        self._schedule.withdraw(found)

    def _is_lost(self, rows: PlacedRows, stage: RemoteStage, rank: int) -> bool:
        """Whether the workers of a data rank have the only copy of rows."""
        if rows.holder is None:
            return False
        group, ranks, payloads = rows.holder
        if group != stage.component.group or set(ranks).isdisjoint(stage.peers[rank]):
            return False
        store = self._recovery.runtime.backend.store
        return not all(map(store.outlives_worker, payloads))
