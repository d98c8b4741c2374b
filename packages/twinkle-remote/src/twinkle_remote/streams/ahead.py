"""The engine of a stream with `ahead=n`: one thread owns the schedule, and works while the loop does.

    loop                    consumes              waits for                     is unblocked by
    ----------------------  --------------------  ----------------------------  ---------------------------------------
    the user's loop, in     the source's batches  an answer: read the source,   the engine's thread, when the schedule
    `next`                                        a batch, or an error          wants rows or has a batch, or on `close`
    the engine's thread     messages: ask, read,  its inbox                     the loop, the backend's reply of a call,
    ("twinkle-stream")      a reply, a look                                     a plain call's end, a rank that is back,
                                                                                the earliest deadline of a call
    the thread of plain     rows of plain stages  its queue                     the engine's thread
    stages ("...-stage")    and of `keep=`
    a lost data rank's      attempts to bring it  a pause, the workers, their   time, Ray, a WeightSync, `close`
    thread ("...-restart")  back (`recovery`)     weights
    a WeightSync that       nothing               `lock`: it begins no call     the end of the engine's step
    publishes               (`held`)              meanwhile

The loop and the thread share two things: queues, and `version`, a number that only the publisher writes. So Ctrl-C may
come at any line of the loop: the stream then closes the engine, and loads the state before that `next` again.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from twinkle_remote.context import context_here
from twinkle_remote.errors import NotInitializedError
from twinkle_remote.failures.frames import calls_are_from
from twinkle_remote.streams.calls import CallAtWork, CallsAtWork
from twinkle_remote.streams.schedule import Schedule
from twinkle_remote.streams.source import StreamBatch
from twinkle_remote.streams.stages import rules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.streams.recovery import Recovery
    from twinkle_remote.streams.schedule import Rules
    from twinkle_remote.streams.source import SourceBatch
    from twinkle_remote.streams.stages import Stage
    from twinkle_remote.streams.stats import Record

_log = logging.getLogger("twinkle.remote")
_WAIT_SECONDS = 60.0  # after which the loop says once what it waits for
_END_SECONDS = 1.0
_Answer = StreamBatch | Literal["read"] | BaseException


class _Ask:
    """The loop asks for a batch; the thread answers with one, with a request to read the source, or with an error."""

    def __init__(self) -> None:
        self.answers: SimpleQueue[_Answer] = SimpleQueue()
        self.reads = False  # it was asked to read, and has not


class AheadEngine:
    """Drives a schedule with remote calls.

    Args:
        stages: At least one; the one of `keep=` last.
        rules: The options; `ahead` is above 0.
        record: Where rows are counted.
        recovery: The data ranks that are lost.
        first: Position of the first row.
        version: The version now.
        line: File and line of the user's code that made the stream, for messages.

    Attributes:
        version: The version now; the publisher sets it.
        lock: Held while a call begins or ends; whoever holds it keeps the stream from beginning anything.
    """

    works_ahead = True

    def __init__(
        self,
        stages: Sequence[Stage],
        rules: Rules,
        record: Record,
        recovery: Recovery,
        *,
        first: int,
        version: int,
        line: str,
    ) -> None:
        self.version, self.lock = version, threading.RLock()
        self._recovery, self._line = recovery, line
        self._inbox: SimpleQueue[_Ask | CallAtWork | tuple[SourceBatch | None] | None] = SimpleQueue()
        pools, of_stage = rules_of(stages)
        self._schedule = Schedule(rules, pools, of_stage, first=first, version=version, counts=record.counts)
        for pool, rank in recovery.lost():
            self._schedule.set_usable(pool, rank, usable=False)
        self._calls = CallsAtWork(self._schedule, stages, record, recovery, self._inbox.put, line)
        self._ask: _Ask | None = None
        self._error: BaseException | None = None
        self._source_error: Exception | None = None
        self._closed = False
        target = context_here().run
        self._thread = threading.Thread(target=target, args=(self._run,), name="twinkle-stream", daemon=True)
        recovery.wake = partial(self._inbox.put, None)

    # the loop's side

    def next(self, read: Callable[[], SourceBatch | None]) -> StreamBatch:
        """The next batch; without rows at the end of the epoch.

        It waits until enough rows are finished; an error of a stage, the loss of all its workers, and the end of the
        stream or of the session unblock it too.

        Raises:
            TwinkleError: A stage raised twice for a row, or all workers of a stage are lost.
            NotInitializedError: The stream was closed while the loop waited.
        """
        if self._thread.ident is None:
            self._thread.start()
        ask = _Ask()
        self._inbox.put(ask)
        while True:
            found = self._wait(ask)
            if found == "read":
                batch = None
                try:
                    batch = read() if self._source_error is None else None
                except Exception as raised:  # the loop has it after the rows before it
                    self._source_error = raised
                self._inbox.put((batch,))
            elif isinstance(found, BaseException):
                raise found
            else:
                error = None if found.rows else self._source_error
                if error is not None:
                    self._source_error = None
                    raise error
                return found

    def _wait(self, ask: _Ask) -> _Answer:
        try:
            return ask.answers.get(timeout=_WAIT_SECONDS)
        except Empty:
            _log.warning("a stream has waited for %.0f s for its next batch: %s", _WAIT_SECONDS, self._calls.describe())
            return ask.answers.get()

    def publish(self, version: int) -> None:
        """A version was published; the schedule knows it before it decides anything more."""
        self.version = version
        self._inbox.put(None)

    def close(self) -> None:
        """End the threads, and cancel async calls; others end by themselves, and nothing waits for them."""
        self._closed = True
        self._inbox.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_END_SECONDS)
        self._calls.end_plain()

    # the engine's thread

    def _run(self) -> None:
        calls_are_from(self._line)
        while not self._closed:
            messages = [self._message()]
            while not self._inbox.empty():
                messages.append(self._inbox.get())
            with self.lock:
                try:
                    if self._error is None:
                        self._step(messages)
                except BaseException as error:
                    self._error = error
                self._ask = next((one for one in reversed(messages) if isinstance(one, _Ask)), self._ask)
                self._answer()
        self._recovery.wake = _nothing
        self._calls.close()

    def _message(self) -> Any:
        """The next message; None when a call is past its deadline."""
        end = self._calls.deadline()
        try:
            return self._inbox.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
        except Empty:
            return None

    def _step(self, messages: Sequence[Any]) -> None:
        if self._recovery.runtime.closed:
            raise NotInitializedError("the session ended while a stream was open: close the stream before shutdown")
        schedule = self._schedule
        if self.version > schedule.version:
            schedule.publish(self.version)
        for message in messages:
            if isinstance(message, _Ask):
                schedule.ask()
            elif isinstance(message, CallAtWork):
                self._calls.look_at(message)
            elif isinstance(message, tuple):
                self._read(*message)
        self._calls.look_for_late()
        for pool, rank in self._recovery.look():
            schedule.set_usable(pool, rank, usable=True)
        while calls := schedule.next_calls():
            for call in calls:
                self._calls.begin(call)

    def _read(self, batch: SourceBatch | None) -> None:
        if self._ask is not None:
            self._ask.reads = False
        if batch is None:
            self._schedule.at_end = True
            return
        self._schedule.read(batch.rows.count, batch.gone)
        self._calls.read(batch)

    def _answer(self) -> None:
        """Answer the loop, if it asks and there is something for it."""
        ask, schedule = self._ask, self._schedule
        if ask is None:
            return
        if self._error is not None or self._closed:
            self._ask = None
            ask.answers.put(self._error or NotInitializedError("the stream was closed while its loop waited"))
        elif schedule.wants_rows():
            if not ask.reads:
                ask.reads = True
                ask.answers.put("read")
        elif schedule.ready() or (schedule.at_end and not schedule.left):
            self._ask = None
            try:
                ask.answers.put(self._batch())
            except BaseException as error:
                self._error = error
                ask.answers.put(error)

    def _batch(self) -> StreamBatch:
        delivered = self._schedule.take()
        if not delivered.rows:
            self._schedule.at_end = False  # for the next epoch
        value = self._calls.take(delivered.rows, delivered.gone)
        return StreamBatch(value, delivered.rows, delivered.begun, delivered.ended, delivered.gone)


def _nothing() -> None:
    """The engine is closed."""
