"""A call in flight: its replies, its deadline, and its errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.pending.call_deadline import CallDeadline, earliest, seconds_to
from twinkle_remote.call.pending.call_failures import CallFailures
from twinkle_remote.call.pending.call_replies import CallReplies
from twinkle_remote.call.pending.circles import CircleWatch
from twinkle_remote.call.pending.reading import read_outcome
from twinkle_remote.call.whole_rows import warn_whole
from twinkle_remote.errors import NotInitializedError
from twinkle_remote.failures.capture import was_cancelled
from twinkle_remote.failures.lost_peer import seconds_for_cause
from twinkle_remote.failures.raising import raise_failures
from twinkle_remote.protocol.own_calls import UnseenFailure
from twinkle_remote.protocol.spec import collected_elsewhere
from twinkle_remote.sessions.telemetry.stats import CallRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.pending.call_runtime import CallRuntime
    from twinkle_remote.protocol.backend import Reply, WorkerGroup
    from twinkle_remote.protocol.call import Call
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.protocol.handed import HandedPiece
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.served import SentCall


class PendingCall:
    """One remote call, composed of its replies, its deadline and its failures; several threads may wait for it.

    Args:
        runtime: The runtime of the call.
        call: The call; its deadline counts from now.
        sent: The call on its way.
        record: Record of its times and bytes.
        sources: Calls whose lazy results are its arguments, or the call of which it reads some answers.
        until: Its deadline in monotonic seconds, if it does not begin now.

    Attributes:
        seen: Its failure was raised to a caller.
        held: Its lazy result exists, so that its failure can still be read.
        awaited: Number of callers that wait for it now.
        handed_on: Its result was passed to another call, which fails with it.
        logged: Its failure was logged, because no caller had waited for it.
        prefetched: It was made ahead of its use: a session does not wait for it, and does not log or raise its failure.
        group_name: Name of the called group.
        on_failures: Called with the outcomes of ranks that failed, as they arrive; None if nobody asks.
        failing: Its failures.
        deadline: Its deadline, and those of its sources.
        data_rank: Its data rank, if it is a part of a call or of a generator's items; None for a whole call.
    """

    def __init__(
        self,
        runtime: CallRuntime,
        call: Call,
        sent: SentCall,
        record: CallRecord,
        sources: Sequence[PendingCall] = (),
        until: float | None = None,
    ) -> None:
        self.call, self.record = call, record
        self.name = call.name
        self.spec = call.spec if sent.of_ranks else collected_elsewhere(call.spec)
        self.mesh = call.mesh
        self.seen = self.held = self.handed_on = self.logged = self.prefetched = False
        self.awaited = 0
        self.data_rank: int | None = None
        self.group_name = call.component.group
        self._group = runtime.backend.group(self.group_name)
        self._each = sent.each
        self._withdrawn = False
        self._runtime, self._sent = runtime, sent
        self.on_failures: Callable[[Sequence[Outcome]], None] | None = None
        self.failing: CallFailures[PendingCall] = CallFailures(sources)
        self._replies = CallReplies(runtime.backend, sent, record)
        self.ranks = self._replies.ranks
        if until is None and call.deadline is not None:
            until = time.monotonic() + call.deadline
        self.deadline: CallDeadline = CallDeadline(until, [source.deadline for source in sources])

    @property
    def line(self) -> str:
        """File and line of the caller."""
        return self.call.line

    @property
    def origin(self) -> tuple[CallRuntime, WorkerGroup]:
        """Its runtime and its group."""
        return self._runtime, self._group

    def by_rank(self) -> PendingCall:
        """The same call, whose ranks' answers are read one by one; they are asked for where they are elsewhere."""
        if self._sent.of_ranks:
            return self
        record = CallRecord(self.name, self.group_name, len(self.call.ranks))
        sent = self._sent.by_rank(self.call.ranks)
        call = PendingCall(self._runtime, self.call, sent, record, [self], self.deadline.at)
        call.failing.repeats = call.prefetched = True
        return call

    def replies(self) -> Sequence[Reply]:
        """The replies of all ranks."""
        return tuple(self._replies.of_rank.values())

    def reply(self, rank: int) -> Reply:
        """The reply of one rank, as an input for a consumer's task."""
        return self._replies.of_rank[rank]

    def pending(self) -> Sequence[Reply]:
        """Replies that are not known to be done."""
        return tuple(self._replies.pending)

    def outcome(self, rank: int) -> Outcome:
        """The outcome of one rank, after `wait`."""
        return self._replies.outcomes[rank]

    def ended(self) -> Sequence[bool]:
        """For each rank, whether its iterator is at its end; after `wait`."""
        return [self._replies.outcomes[rank].ended for rank in self.ranks]

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        if self._replies.pending and not self._runtime.closed:
            self._reap(0.0)
        return not self._replies.pending

    def failed(self) -> bool:
        """Whether a worker is known to have failed; never waits."""
        return bool(self.failing.known)

    def first_failure(self) -> Failure:
        """The first known failure, or its cause; there is one."""
        return self.failing.as_seen()[0]

    def built(self) -> Component:
        """The component that it has built, after `wait`."""
        return self._sent.built(self.call.component)

    def cancel(self) -> None:
        """Cancel it on the ranks that have not answered, if it runs on their event loops; returns at once."""
        if self._replies.pending and not self._runtime.closed:
            self._sent.cancel(self._replies.pending)

    def withdraw(self) -> None:
        """Cancel it for its caller, also where a worker has not begun it; that it fails so counts as seen."""
        if self.done() or self._runtime.closed:
            return
        self._expect_cancelled()
        if self.spec.on_loop or len(self.ranks) == 1 or not self.spec.collective:
            self._sent.withdraw(self._replies.pending)

    @property
    def each(self) -> bool | None:
        """Whether every called rank received rows of its own; None if that is not known yet."""
        if self._each is None and not self._replies.pending:
            self._each = any(outcome.rows_given is not None for outcome in self._replies.outcomes.values())
            with_rows = any(outcome.rows is not None for outcome in self._replies.outcomes.values())
            if not self._each and with_rows and len(self.ranks) > 1 and self.spec.collect == "flatten":
                warn_whole(self.name, "a lazy argument that is no list", len(self.ranks))
        return self._each

    def fetch(
        self, outcome: Outcome, limit: float | None = None, began: float | None = None, piece: HandedPiece | None = None
    ) -> Any:
        """The value of an outcome, or a piece of it, on this process.

        Args:
            outcome: Of a rank that has answered.
            limit: Seconds for waiting and reading together; the call's own deadline is one too.
            began: Start of the wait, in monotonic seconds; None for no limit.
            piece: Of its payload; None for the whole value.

        Raises:
            CallTimeoutError: It was not read in time; the call is done, and it can be read again.
        """
        self._check_open()
        seconds = None if began is None else earliest((limit, self.spec.timeout))
        value, size = read_outcome(self, self._runtime.backend.store, outcome, piece, seconds, began or 0.0)
        return self.record.add_driver_fetched(value, size)

    def failed_at(self) -> float:
        """Time of its failure or its passed deadline, in seconds of the wall clock; 0 without either."""
        if self.failing.known or self.deadline.at is None:
            return self.failing.at
        return time.time() - (time.monotonic() - self.deadline.at)

    def failure_text(self) -> str:
        """The known failure in one line."""
        if not self.failing.known:
            return f"{self.name} on {self.call.where()} is past its deadline; called from {self.line}"
        first = self.first_failure()
        what = f"{first.method or self.name} on {first.label}: {first.type_name}: {first.message}"
        return f"{what}; called from {self.line}"

    def unseen(self) -> bool:
        """Whether it failed or is late, and no caller has seen that failure or its cause."""
        if self.seen or self.prefetched or not (self.failing.matter_to(self.call.kind) or self.late()):
            return False
        return not any(call.seen for call in self._behind(lambda call: call.failed() or call.late()))

    def unseen_failure(self) -> UnseenFailure:
        """Its failure or lateness, in a form that pickles; from now on it counts as seen."""
        self._see()
        late = None if self.failing.known else self.lateness(self.spec.timeout)
        failures = tuple(self.failing.as_seen())
        return UnseenFailure(self.name, self.group_name, self.line, self.failed_at(), failures, late)

    def released(self) -> None:
        """Called when its lazy result is deleted; a failure that no caller has seen is kept and logged."""
        self.held = False
        if self.failing.known and not self._replies.pending:
            self._runtime.call_completed(self)

    def late(self) -> bool:
        """Whether the deadline passed before every worker had answered."""
        return self.deadline.has_passed() and not self.done()

    def overdue(self) -> PendingCall | None:
        """The late call that it waits for, at any number of steps, or itself if it is late; None without one."""
        if not self.deadline.may_have_passed() or self.failed() or self.done():
            return None
        return next((call for call in reversed(self.waited_for()) if call.late()), None)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for every worker.

        Args:
            timeout: Seconds to wait, in addition to the call's own deadline; None adds no limit.

        Raises:
            RemoteCallError: A worker raised; the first failure in completion order is raised at once, with the others
                under it.
            WorkerDiedError: A worker was lost.
            CircularCallError: It waits for a worker that waits for the running task.
            CallTimeoutError: The time of this call, or of a call that its arguments wait for, is over; names the ranks
                that are done and those that are not.
            NotInitializedError: It was in flight at a shutdown.
        """
        until = None if timeout is None else time.monotonic() + timeout
        self.awaited += 1
        try:
            with CircleWatch([self], self._runtime.backend, limited=until is not None) as circles:
                while self._replies.pending and not self.failing.known:
                    self._wait_a_while(timeout, until, circles)
            if self.failing.known:
                self._wait_for_the_cause()
                if self._replies.pending and not self._runtime.closed:
                    self._reap(0.0)
        except KeyboardInterrupt:
            if self.spec.on_loop:
                self._expect_cancelled()
            self.cancel()
            raise
        finally:
            self.awaited -= 1
        if self.failing.known:
            if self.first_failure().died:  # a worker that a shutdown has ended did not die
                self._check_open()
            self._raise_failures()

    def ends_within(self, seconds: float) -> bool:
        """Wait for at most `seconds` without raising; returns whether `wait` would now return at once.

        Args:
            seconds: At or above 0.
        """
        until = time.monotonic() + seconds
        self.awaited += 1
        try:
            while not self._is_over():
                if not self._reap(seconds_to((until, *self._deadlines()))) and time.monotonic() >= until:
                    break
        finally:
            self.awaited -= 1
        return self._is_over()

    def _is_over(self) -> bool:
        answered = not self._replies.pending or self.failed()
        return answered or self._runtime.closed or self.overdue() is not None

    def _wait_a_while(self, timeout: float | None, until: float | None, circles: CircleWatch) -> None:
        """Wait until a worker has answered or a time limit is reached."""
        self._check_open()
        if self._reap(seconds_to((until, circles.due, *self._deadlines()))):
            return
        self._check_open()
        if (call := self.overdue()) is not None:
            self._mark_seen()
            call._see()
            late = call.lateness(call.spec.timeout)
            call.cancel()
            raise late
        if until is not None and time.monotonic() >= until:
            raise self.lateness(timeout)
        circles.look()

    def waited_for(self) -> Sequence[PendingCall]:
        """The calls whose workers must answer before it is done: itself, and those that make its arguments."""
        return [self, *self._behind(lambda call: bool(call._replies.pending))]

    def _wait_for_the_cause(self) -> None:
        """Wait shortly for the cause of lost connections, or for what peers report of a death."""
        began = time.monotonic()
        while self._replies.pending and not self._runtime.closed:
            left = began + seconds_for_cause(self.failing.as_seen()) - time.monotonic()
            if left <= 0 or not self._reap(left):
                return

    def _raise_failures(self) -> None:
        """Raise the first failure; there is one."""
        self._see()
        if (error := self._sent.error()) is not None:
            raise error
        raise_failures(self.name, self.group_name, self.failing.as_seen(), self.line)

    def _see(self) -> None:
        """Mark its failure, and those that it follows from, as seen by a caller."""
        call: PendingCall | None = self
        while call is not None:
            call._mark_seen()
            call._withdrawn = False  # the caller has its failure, whatever the other ranks answer
            if call.failing.follow():
                call.failing.wait_for_a_source(call._runtime)
            call = call.failing.cause()

    def _expect_cancelled(self) -> None:
        """That it is cancelled counts as seen; another failure that comes first does not, unless a caller has one."""
        self._withdrawn = not self.seen or self._withdrawn
        self._mark_seen()

    def _mark_seen(self) -> None:
        self.seen = True
        self._runtime.call_seen(self)

    def comes_from_a_source(self) -> bool:
        """Whether its failure follows from that of a call which makes an argument, or which it repeats."""
        return self.failing.follow()

    def _behind(self, keep: Callable[[PendingCall], bool]) -> Sequence[PendingCall]:
        """The calls that make its arguments, those that make theirs, and so on while `keep` holds; nearest first."""
        found = {self: None}
        for call in (left := [self]):
            fresh = [source for source in call.failing.sources if source not in found and keep(source)]
            found.update(dict.fromkeys(fresh))
            left += fresh
        return left[1:]

    def state(self) -> str:
        """A short text of the call's state; never waits."""
        if self.done() or self.failing.known:
            return "failed" if self.failing.known else "done"
        if self._runtime.closed:
            return "lost at shutdown"
        return f"{len(self._replies.outcomes)} of {len(self.ranks)} workers done" if self._sent.of_ranks else "not done"

    def label(self, rank: int) -> str:
        """The short name of a called worker, with its coordinate."""
        return self.call.label(self._group.info(rank))

    def _deadlines(self) -> Sequence[float | None]:
        waited_for = () if self.deadline.first is None else self.waited_for()
        return [call.deadline.at for call in waited_for if call._replies.pending]

    def _check_open(self) -> None:
        if self._runtime.closed:
            raise NotInitializedError(self._runtime.refusal(f"the result of {self.name}, called from {self.line},"))

    def _reap(self, timeout: float | None) -> bool:
        """Read the outcomes that have arrived; False if none arrived before the timeout."""
        return self._replies.reap(timeout, self._take_failures, self._completed)

    def _take_failures(self, outcomes: Sequence[Outcome]) -> None:
        ends = self.failing.add(outcomes)
        if self.on_failures is not None:
            self.on_failures(ends)

    def _completed(self) -> None:
        if not self.failing.known:
            self.failing.sources = ()
        elif self._withdrawn and not all(map(was_cancelled, self.failing.known)):
            self.seen = False  # another failure than the one that was asked for
        self._runtime.call_completed(self)

    def lateness(self, seconds: float | None) -> Exception:
        """The error that it is not done after this time; what its workers raised, if all have answered meanwhile."""
        if not self._replies.pending and self.failing.known:
            try:
                self._raise_failures()
            except Exception as error:
                return error
        return self._sent.lateness(seconds, sorted(self._replies.outcomes), self._replies.pending)
