"""A call in flight: its replies, its deadline and its failures, in one class.

A call runs from the start, and ends by its outcomes or by the end of the session. Each reply is taken in by the thread
that answers; nothing polls. Its failure is retrieved where it is raised to a caller, and with it those from which it
follows (`causes`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.causes import as_raised, is_retrieved, raise_first
from twinkle_remote.call.collect import read_outcome, warn_whole
from twinkle_remote.context import held_task, refuse_own_rank
from twinkle_remote.errors import NotInitializedError
from twinkle_remote.failures.report import called_alone, lateness, seconds_for_cause
from twinkle_remote.failures.stuck_peers import free_stuck_peers
from twinkle_remote.sessions.pending_calls import earliest, wait_for_calls, wait_for_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.messages import Call, Failure, Outcome
    from twinkle_remote.sessions.session import Runtime
    from twinkle_remote.sessions.telemetry import CallRecord
    from twinkle_remote.tables.nodes import Piece

_LOGGER = logging.getLogger("twinkle")
SLOW_SECONDS = 60.0  # of a wait, after which it says once what it waits for


class PendingCall:
    """One remote call; several threads may wait for it.

    Args:
        runtime: The runtime of the call.
        call: The call; its deadline counts from now.
        replies: One for each called rank, ascending.
        record: Record of its times and bytes.
        sources: Calls whose lazy results are its arguments, or the call of which it reads some answers.
        each: Every called rank received rows of its own; None if only the outcomes show it.
        repeats: Its source is the same call.
        held: Its caller waits for it, or has a lazy result of it.
        prefetched: It runs in the background: a session does not wait for it, and does not log or raise its failure.

    Attributes:
        group: The called group.
        ranks: The called ranks, ascending.
        failures: What its ranks have raised so far, in completion order.
        sources: None any more when it has ended well.
        known_cause: See `cause_of`.
        deadline: Its own, in monotonic seconds; None without one.
        is_over: A rank has failed, all have answered, or the session has ended.
        seen: Its failure was retrieved.
        was_cancelled: Its caller has cancelled it, so that this failure counts as retrieved.
        logged: Its failure was logged.
        held: Its failure can still be retrieved.
        handed_on: Its result was passed to another call, which fails with it.
        made_in: The task of the `def` method that has made it; None elsewhere.
    """

    def __init__(
        self,
        runtime: Runtime,
        call: Call,
        replies: Sequence[Reply],
        record: CallRecord,
        sources: Sequence[PendingCall] = (),
        *,
        each: bool | None = False,
        repeats: bool = False,
        held: bool = False,
        prefetched: bool = False,
    ) -> None:
        self.runtime, self.call, self.record = runtime, call, record
        self.name, self.line, self.spec, self.mesh = call.name, call.line, call.spec, call.component.mesh
        self.group = runtime.backend.group(call.component.group)
        self.held, self.prefetched = held, prefetched
        self.is_over = self.seen = self.handed_on = self.was_cancelled = self.logged = False
        self.made_in = held_task()
        self.failures: list[Failure] = []
        self.sources = tuple(sources)
        self.ranks = tuple([reply.rank for reply in replies])
        self.deadline = None if call.spec.timeout is None else time.monotonic() + call.spec.timeout
        self.known_cause: PendingCall | None = None
        self._first_deadline: float | None = earliest([self.deadline, *[source._first_deadline for source in sources]])
        self._each, self._repeats, self._failed_at = each, repeats, 0.0  # wall clock
        self._replies = dict(zip(self.ranks, replies, strict=True))
        self._outcomes: dict[int, Outcome] = {}
        self._lock = threading.Lock()
        self._told: dict[Callable[[], None], bool] = {}  # whether each answer is told

    def listen(self) -> None:
        """Take in the replies from now on: in the threads that answer, those that are there in this one."""
        for reply in self._replies.values():
            reply.add_done_callback(partial(self._arrived, reply.rank))

    def _arrived(self, rank: int, reply: Future[Outcome]) -> None:
        failed = (outcome := reply.result()).failure is not None
        with self._lock:
            self.record.add(outcome)
            if failed:
                known = [one for one in (*self._outcomes.values(), outcome) if one.failure is not None]
                ends = sorted(known, key=_end)
                self.failures = [one.failure for one in ends if one.failure is not None]
                self._failed_at = self._failed_at or _end(ends[0])[0] or time.time()
            self._outcomes[rank] = outcome  # after its failure: who finds the call done, without a lock, finds that too
            ended = self.done()
        if failed and self.spec.collective and not self._repeats:
            free_stuck_peers(self, outcome)
        if ended:
            self.sources = self.sources if self.failures else ()
            self.runtime.in_flight.completed(self)
        elif failed:
            self.runtime.in_flight.failed(self)
        self.tell(over=ended or failed)

    def notify(self, tell: Callable[[], None], *, each: bool = False) -> None:
        """Call a function once when it is over, or after each answer from now on; at once if that is so already.

        It returns at once, and may be called in any thread.
        """
        with self._lock:
            now = self.is_over or (each and bool(self._outcomes))
            if each or not now:
                self._told[tell] = each
        if now:
            tell()

    def forget(self, tell: Callable[[], None]) -> None:
        """Call a function no more."""
        with self._lock:
            self._told.pop(tell, None)

    def tell(self, *, over: bool) -> None:
        """Call the functions of `notify`, after an answer or at the end of the session: then it is over."""
        with self._lock:
            self.is_over = self.is_over or over
            told = [tell for tell, each in self._told.items() if each or self.is_over]
            if self.is_over:
                self._told = {tell: each for tell, each in self._told.items() if each and not self.done()}
        for tell in told:
            tell()

    def replies(self) -> Sequence[Reply]:
        """The replies of all ranks."""
        return tuple(self._replies.values())

    def reply(self, rank: int) -> Reply:
        """The reply of one rank, as an input for a consumer's task."""
        return self._replies[rank]

    def pending(self) -> Sequence[Reply]:
        """Replies whose answers were not taken in."""
        return [reply for reply in self._replies.values() if reply.rank not in self._outcomes]

    def outcome(self, rank: int) -> Outcome:
        """The outcome of one rank, after `wait`."""
        return self._outcomes[rank]

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        return len(self._outcomes) == len(self._replies)

    def failed(self) -> bool:
        """Whether a worker is known to have failed; never waits."""
        return bool(self.failures)

    def label(self, rank: int) -> str:
        """The short name of a called worker, with its coordinate."""
        return self.call.label(self.group.info(rank))

    def state(self) -> str:
        """A short text of the call's state; never waits."""
        if self.done() or self.failures:
            return "failed" if self.failures else "done"
        if self.runtime.closed:
            return "lost at shutdown"
        return f"{len(self._outcomes)} of {len(self.ranks)} workers done"

    @property
    def each(self) -> bool | None:
        """Whether every called rank received rows of its own; None if that is not known yet."""
        if self._each is None and self.done():
            self._each = any(outcome.rows_given is not None for outcome in self._outcomes.values())
            with_rows = any(outcome.rows is not None for outcome in self._outcomes.values())
            if not self._each and with_rows and len(self.ranks) > 1 and self.spec.collect == "flatten":
                warn_whole(self.name, "a lazy argument that is no list", len(self.ranks))
        return self._each

    def fetch(
        self, outcome: Outcome, limit: float | None = None, began: float | None = None, piece: Piece | None = None
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
        self.check_open()
        seconds = None if began is None else earliest((limit, self.spec.timeout))
        value, size = read_outcome(self, outcome, piece, seconds, began or 0.0)
        self.record.driver_fetched += size
        return value

    def cancel(self) -> None:
        """Cancel its coroutines for its caller, and its methods that have not begun, where no peers wait for these."""
        if self.done() or self.runtime.closed:
            return
        self.was_cancelled = True
        if self.spec.on_loop or len(self.ranks) == 1 or not self.spec.collective:
            self.group.cancel(self.pending())

    def give_up(self) -> None:
        """Cancel its coroutines; a method runs on."""
        if self.spec.on_loop and not (self.done() or self.runtime.closed):
            self.group.cancel(self.pending())

    def released(self) -> None:
        """Called when its lazy result is deleted; a failure that nobody has retrieved is kept and logged."""
        self.held = False
        if self.failures:  # also while other ranks are at work
            self.runtime.in_flight.failed(self)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for every worker: their answers, the deadline, `timeout` or the end of the session frees it.

        Args:
            timeout: Seconds to wait, in addition to the call's own deadline; None adds no limit.

        Raises:
            RemoteCallError: A worker raised; the first failure in completion order is raised at once, with the others
                under it.
            WorkerDiedError: A worker was lost.
            CircularCallError: It needs the rank of the running `def` method, which runs nothing else until that ends.
            CallTimeoutError: The time of this call, or of a call that its arguments wait for, is over; names the ranks
                that are done and those that are not.
            NotInitializedError: It was in flight at a shutdown.
        """
        until = None if timeout is None else time.monotonic() + timeout
        try:
            if not self.is_over:
                self.check_open()
                refuse_own_rank(self.waited_for())
                self._wait_until_over(timeout, until)
            began = time.monotonic()
            while self.failures and not (self.done() or self.runtime.closed):
                until = began + seconds_for_cause(as_raised(self))
                if until <= time.monotonic():
                    break
                self.next_answer(until)
        except KeyboardInterrupt:
            self.was_cancelled = self.was_cancelled or self.spec.on_loop
            self.give_up()
            raise
        if not self.failures:
            if not self.done():
                self.check_open()
            return
        if self.first_failure().died:  # a worker that a shutdown has ended did not die
            self.check_open()
        raise_first(self)

    def ends_within(self, seconds: float) -> bool:
        """Wait for at most `seconds` without raising; returns whether `wait` would now return at once."""
        wait_for_one([self], time.monotonic() + seconds)
        return self.is_over or bool(self.overdue())

    def _wait_until_over(self, timeout: float | None, until: float | None) -> None:
        """Wait until it is over, or raise that a time limit is reached; a long wait says once what it waits for."""
        slow: float | None = time.monotonic() + SLOW_SECONDS
        while not self.is_over:
            wait_for_one([self], earliest((until, slow)))
            if self.is_over:
                return
            if (call := self.overdue()) is not None:
                late = call.lateness(call.spec.timeout)
                for one in (self, call):
                    one.retrieved()
                call.give_up()
                raise late
            now = time.monotonic()
            if until is not None and now >= until:
                raise self.lateness(timeout)
            if slow is not None and now >= slow:
                _LOGGER.warning("a wait takes long: %s", self.lateness(SLOW_SECONDS))
                slow = None

    def next_answer(self, until: float) -> None:
        """Wait until one more rank has answered, or until a time on the monotonic clock."""
        known = len(self._outcomes)
        wait_for_calls([self], until, lambda: len(self._outcomes) > known, each=True)

    def check_open(self) -> None:
        """Raise where the session has ended, or is that of the parent process, so that no answer comes."""
        if self.runtime.closed:
            raise NotInitializedError(self.runtime.refusal(f"the result of {self.name}, called from {self.line},"))

    def late(self) -> bool:
        """Whether the deadline passed before every worker had answered."""
        return self.deadline is not None and time.monotonic() >= self.deadline and not self.done()

    def overdue(self) -> PendingCall | None:
        """The late call that it waits for, at any number of steps, or itself if it is late; None without one."""
        if time.monotonic() < (self._first_deadline or math.inf) or self.failed() or self.done():
            return None
        return next((call for call in reversed(self.waited_for()) if call.late()), None)

    def waited_for(self) -> Sequence[PendingCall]:
        """The calls whose workers must answer before it is done: itself, and those that make its arguments."""
        return [self, *self.behind(lambda call: not call.done())]

    def behind(self, keep: Callable[[PendingCall], bool]) -> Sequence[PendingCall]:
        """The calls that make its arguments, those that make theirs, and so on while `keep` holds; nearest first."""
        found = {self: None}
        for call in (left := [self]):
            fresh = [source for source in call.sources if source not in found and keep(source)]
            found.update(dict.fromkeys(fresh))
            left += fresh
        return left[1:]

    def next_deadline(self) -> float | None:
        """The first deadline of the calls that it waits for, in monotonic seconds; None without one."""
        if self._first_deadline is None:
            return None
        return earliest([call.deadline for call in self.waited_for() if not call.done()])

    def lateness(self, seconds: float | None) -> Exception:
        """The error that it is not done after this time; what its workers raised, if all have answered meanwhile."""
        if self.done() and self.failures:
            try:
                raise_first(self)
            except Exception as error:
                return error
        done, pending = sorted(self._outcomes), self.pending()
        late = [reply.rank for reply in pending]
        head = (
            f"{self.name} on {self.call.where()} is not done after {seconds:g} s: "
            f"{f'ranks {done} are done' if done else 'no rank is done'}, "
            f"ranks {late} are not: {', '.join([self.label(rank) for rank in late])}"
        )
        size = self.group.size if self.mesh is None else self.mesh.world_size
        alone = called_alone(self.spec, self.ranks, size)
        return lateness(head, self.line, done, late, self.group.stacks(pending), alone)

    def unseen(self) -> bool:
        """Whether it failed or is late, and nobody has retrieved that failure or its cause."""
        return (bool(self.failures) or self.late()) and not is_retrieved(self)

    def follows(self) -> bool:
        """Whether its failure follows from that of a source."""
        return self._repeats or any(failure.upstream for failure in self.failures)

    def failed_at(self) -> float:
        """Time of its failure or its passed deadline, in seconds of the wall clock; 0 without either."""
        if self.failures or self.deadline is None:
            return self._failed_at
        return time.time() - (time.monotonic() - self.deadline)

    def first_failure(self) -> Failure:
        """The first known failure, or its cause; there is one."""
        return as_raised(self)[0]

    def retrieved(self) -> None:
        """A caller has its failure, or is about to get it."""
        self.seen = True
        self.runtime.in_flight.seen(self)


def _end(outcome: Outcome) -> tuple[float, int]:
    """The end of a rank's part, on its wall clock, and its rank."""
    return outcome.started + outcome.seconds, outcome.rank
