"""A call in flight: its replies, its deadline, and its errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.call_answers import CallAnswers
from twinkle_remote.call.causes import cause_among, wait_for_a_source
from twinkle_remote.call.circles import CircleWatch
from twinkle_remote.call.reading import read_outcome
from twinkle_remote.call.whole_rows import warn_whole
from twinkle_remote.errors import NotInitializedError
from twinkle_remote.failures.capture import was_cancelled
from twinkle_remote.failures.lateness import called_alone, lateness
from twinkle_remote.failures.lost_peer import seconds_for_cause
from twinkle_remote.failures.raising import raise_failures
from twinkle_remote.protocol.own_calls import UnseenFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.call.call_runtime import CallRuntime
    from twinkle_remote.errors import CallTimeoutError
    from twinkle_remote.protocol.backend import Reply, WorkerGroup
    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.sessions.stats import CallRecord

_ALL = slice(None)


class PendingCall(CallAnswers):
    """One remote call; several threads may wait for it.

    Args:
        runtime: The runtime of the call.
        group: The called workers' group.
        name: Class.method.
        spec: Options of the function; its timeout counts from now.
        mesh: Mesh of the component, or None.
        replies: One for each called rank, ascending by rank.
        each: Every called rank received rows of its own; None if only the outcomes show it.
        line: File and line of the caller.
        record: Record of its times and bytes.
        sources: Calls whose lazy results are its arguments.

    Attributes:
        seen: Its failure was raised to a caller.
        held: Its lazy result exists, so that its failure can still be read.
        awaited: Number of callers that wait for it now.
        handed_on: Its result was passed to another call, which fails with it.
        logged: Its failure was logged, because no caller had waited for it.
        prefetched: It was made ahead of its use: a session does not wait for it, and does not log or raise its failure.
        group_name: Name of the called group.
        repeats: Its source is the same call, of which it reads some answers or reads them in another way.
        data_rank: Its data rank, if it is a part of a call or of a generator's items; None for a whole call.
    """

    def __init__(
        self,
        runtime: CallRuntime,
        group: WorkerGroup,
        name: str,
        spec: FunctionSpec,
        mesh: DeviceMesh | None,
        replies: Sequence[Reply],
        *,
        line: str,
        record: CallRecord,
        each: bool | None = False,
        sources: Sequence[PendingCall] = (),
    ) -> None:
        super().__init__(runtime, replies, record)
        self.name = name
        self.spec = spec
        self.mesh = mesh
        self.seen = False
        self.held = False
        self.awaited = 0
        self.handed_on = False
        self.logged = False
        self.prefetched = False
        self.repeats = False
        self.data_rank: int | None = None
        self._group, self.group_name = group, group.name
        self._each = each
        self._line = line
        self._sources = tuple(sources)
        self._cause: PendingCall | None = None
        self._withdrawn = False
        self._deadline = None if spec.timeout is None else time.monotonic() + spec.timeout
        limits = [self._deadline, *(call._late_from for call in sources)]
        self._late_from: float | None = min([limit for limit in limits if limit is not None], default=None)

    @property
    def line(self) -> str:
        """File and line of the caller."""
        return self._line

    @property
    def origin(self) -> tuple[CallRuntime, WorkerGroup, str]:
        """Its runtime, its group and the caller's line, for a call that is a part of it."""
        return self._runtime, self._group, self._line

    def by_rank(self) -> PendingCall:
        """The same call, whose ranks' answers are read one by one."""
        return self

    def count_fetched(self, size: int) -> None:
        """Count bytes of its result that came to this process."""
        self.record.driver_fetched += size

    def cancel(self) -> None:
        """Cancel it on the ranks that have not answered, if it runs on their event loops; returns at once."""
        if self._pending and not self._runtime.closed:
            self._group.cancel(self._pending)

    def withdraw(self) -> None:
        """Cancel it for its caller, also where a worker has not begun it; that it fails so counts as seen."""
        if self.done() or self._runtime.closed:
            return
        self._withdrawn = True
        self._mark_seen()
        if self.spec.on_loop or len(self.ranks) == 1 or not self.spec.collective:
            self._withdraw()

    def _withdraw(self) -> None:
        self._group.withdraw(self._pending)

    @property
    def each(self) -> bool | None:
        """Whether every called rank received rows of its own; None if that is not known yet."""
        if self._each is None and not self._pending:
            self._each = any(outcome.rows_given is not None for outcome in self._outcomes.values())
            if not self._each and len(self.ranks) > 1 and self.spec.collect == "flatten" and self._with_rows():
                warn_whole(self.name, "a lazy argument that is no list", len(self.ranks))
        return self._each

    def _with_rows(self) -> bool:
        return any(outcome.rows is not None for outcome in self._outcomes.values())

    def fetch_all(self, ranks: Sequence[int], timeout: float | None, began: float) -> Sequence[Any]:
        """The values of several ranks, on this process.

        Args:
            ranks: Ranks whose outcomes have arrived.
            timeout: Seconds for waiting and reading together; the call's own timeout is a limit too.
            began: Start of the wait, in monotonic seconds.

        Raises:
            CallTimeoutError: They were not read in time; the call is done, and they can be read again.
        """
        seconds = min([limit for limit in (timeout, self.spec.timeout) if limit is not None], default=None)
        return [self.fetch(self._outcomes[rank], seconds, began) for rank in ranks]

    def fetch(self, outcome: Outcome, timeout: float | None = None, began: float = 0.0, rows: slice = _ALL) -> Any:
        """The value of an outcome, or rows of it, on this process; see `fetch_all`."""
        self._check_open()
        value, size = read_outcome(self, self._runtime.backend.store, outcome, timeout, began, rows)
        self.record.driver_fetched += size
        return value

    def failed_at(self) -> float:
        """Time of its failure or its passed deadline, in seconds of the wall clock; 0 without either."""
        if self._failures or self._deadline is None:
            return self._failed_at
        return time.time() - (time.monotonic() - self._deadline)

    def failure_text(self) -> str:
        """The known failure in one line."""
        if not self._failures:
            return f"{self.name} on {self.where()} is past its deadline; called from {self._line}"
        first = self.first_failure()
        what = f"{first.method or self.name} on {first.label}: {first.type_name}: {first.message}"
        return f"{what}; called from {self._line}"

    def unseen(self) -> bool:
        """Whether it failed or is late, and no caller has seen that failure or its cause."""
        if self.seen or self.prefetched or not (self._failures or self.late()):
            return False
        return not any(call.seen for call in self._behind(lambda call: call.failed() or call.late()))

    def unseen_failure(self) -> UnseenFailure:
        """Its failure or lateness, in a form that pickles; from now on it counts as seen."""
        self._see()
        late = None if self._failures else self.lateness(self.spec.timeout)
        group, failures = self._group.name, tuple(self._told_failures())
        return UnseenFailure(self.name, group, self._line, self.failed_at(), failures, late)

    def released(self) -> None:
        """Called when its lazy result is deleted; a failure that no caller has seen is kept and logged."""
        self.held = False
        if self._failures and not self._pending:
            self._runtime.call_completed(self)

    def late(self) -> bool:
        """Whether the deadline passed before every worker had answered."""
        return self._deadline is not None and time.monotonic() >= self._deadline and not self.done()

    def overdue(self) -> PendingCall | None:
        """The late call that it waits for, at any number of steps, or itself if it is late; None without one."""
        if self._late_from is None or time.monotonic() < self._late_from or self.failed() or self.done():
            return None
        return next((call for call in reversed(self.waited_for()) if call.late()), None)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for every worker.

        Args:
            timeout: Seconds to wait, beside the call's own deadline; None adds no limit.

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
                while self._pending and not self._failures:
                    self._wait_a_while(timeout, until, circles)
            if self._failures:
                self._wait_for_the_cause()
                if self._pending and not self._runtime.closed:
                    self._reap(0.0)
        except KeyboardInterrupt:
            if self.spec.on_loop:
                self._withdrawn = True
                self._mark_seen()
            self.cancel()
            raise
        finally:
            self.awaited -= 1
        if self._failures:
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
                limits = [limit for limit in (until, *self._deadlines()) if limit is not None]
                if not self._reap(max(0.0, min(limits) - time.monotonic())) and time.monotonic() >= until:
                    break
        finally:
            self.awaited -= 1
        return self._is_over()

    def _is_over(self) -> bool:
        return not self._pending or bool(self._failures) or self._runtime.closed or self.overdue() is not None

    def _wait_a_while(self, timeout: float | None, until: float | None, circles: CircleWatch) -> None:
        """Wait until a worker has answered or a time limit is reached."""
        self._check_open()
        limits = [limit for limit in (until, circles.due, *self._deadlines()) if limit is not None]
        if self._reap(max(0.0, min(limits) - time.monotonic()) if limits else None):
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
        return [self, *self._behind(lambda call: bool(call._pending))]

    def _wait_for_the_cause(self) -> None:
        """Wait shortly for the cause of lost connections, or for what peers tell of a death."""
        began = time.monotonic()
        while self._pending and not self._runtime.closed:
            left = began + seconds_for_cause(self._told_failures()) - time.monotonic()
            if left <= 0 or not self._reap(left):
                return

    def _raise_failures(self) -> None:
        """Raise the first failure, if there is one."""
        if self._failures:
            self._see()
            raise_failures(self.name, self._group.name, self._told_failures(), self._line)

    def _see(self) -> None:
        """Mark its failure, and those that it follows from, as seen by a caller."""
        call: PendingCall | None = self
        while call is not None:
            call._mark_seen()
            if call.comes_from_a_source():
                wait_for_a_source(call._runtime, call._sources)
            call = call._known_cause()

    def _mark_seen(self) -> None:
        self.seen = True
        self._runtime.call_seen(self)

    def comes_from_a_source(self) -> bool:
        """Whether its failure follows from that of a call which makes an argument, or which it repeats."""
        return self.repeats or any(failure.upstream for failure in self._failures)

    def _known_cause(self) -> PendingCall | None:
        """The source from whose failure its own follows, the same one each time; None if none is known."""
        if self._cause is None and self.comes_from_a_source():
            self._cause = cause_among(self._sources, self._failures)
        return self._cause

    def _told_failures(self) -> Sequence[Failure]:
        """The known failures as a caller is told of them: a known cause stands for what follows from it."""
        call: PendingCall = self
        while (cause := call._known_cause()) is not None:
            call = cause
        if call is self:
            return self._failures
        first = call._failures[0].as_upstream()
        return [first if failure.upstream else failure for failure in self._failures]

    def _behind(self, keep: Callable[[PendingCall], bool]) -> Sequence[PendingCall]:
        """The calls that make its arguments, those that make theirs, and so on while `keep` holds; nearest first."""
        found = {self: None}
        for call in (left := [self]):
            fresh = [source for source in call._sources if source not in found and keep(source)]
            found.update(dict.fromkeys(fresh))
            left += fresh
        return left[1:]

    def state(self) -> str:
        """A short text of the call's state; never waits."""
        if self.done() or self._failures:
            return "failed" if self._failures else "done"
        if self._runtime.closed:
            return "lost at shutdown"
        return f"{len(self._outcomes)} of {len(self._replies)} workers done"

    def where(self) -> str:
        """Group, number of called workers, and the mesh: `actor[8] dp=2 tp=4`."""
        dims = () if self.mesh is None else zip(self.mesh.dim_names, self.mesh.shape, strict=True)
        return " ".join([f"{self._group.name}[{len(self._replies)}]", *(f"{dim}={size}" for dim, size in dims)])

    def label(self, rank: int) -> str:
        """The short name of a called worker, with its coordinate."""
        place = self.mesh.coordinate(rank) if self.mesh and rank in self.mesh else None
        return self._group.info(rank).label(place)

    def _deadlines(self) -> Sequence[float | None]:
        if self._late_from is None:
            return ()
        return [call._deadline for call in self.waited_for() if call._pending]

    def _check_open(self) -> None:
        if self._runtime.closed:
            raise NotInitializedError(self._runtime.refusal(f"the result of {self.name}, called from {self._line},"))

    def _completed(self) -> None:
        if not self._failures:
            self._sources = ()
        elif self._withdrawn and not all(map(was_cancelled, self._failures)):
            self.seen = False  # another failure than the one that was asked for
        self._runtime.call_completed(self)

    def lateness(self, seconds: float | None) -> CallTimeoutError:
        """The error that it is not done after this time."""
        pending = [reply.rank for reply in self._pending]
        done = sorted(self._outcomes)
        head = (
            f"{self.name} on {self.where()} is not done after {seconds:g} s: "
            f"{f'ranks {done} are done' if done else 'no rank is done'}, "
            f"ranks {pending} are not: {', '.join(map(self.label, pending))}"
        )
        size = self._group.size if self.mesh is None else self.mesh.world_size
        alone = called_alone(self.spec, self.ranks, size)
        return lateness(head, self._line, done, pending, self._group.stacks_of(self._pending), alone)

    def unread(self, rank: int, seconds: float, why: object) -> CallTimeoutError:
        """The error that the result of a rank was not read in time."""
        done = [other for other in self.ranks if other != rank]
        head = (
            f"{self.name} on {self.where()} is done, but the result of {self.label(rank)} was not read within "
            f"{seconds:g} s: {why}"
        )
        return lateness(head, self._line, done, [rank], self._group.stacks([rank]))
