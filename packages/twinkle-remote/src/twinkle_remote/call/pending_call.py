"""A call in flight: its replies, its deadline, and what is raised when it fails or is late."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_remote.errors import CollectError, NotInitializedError, StoreTimeoutError, TwinkleError, WorkerDiedError
from twinkle_remote.failures.lateness import lateness
from twinkle_remote.failures.lost_peer import only_lost_peers
from twinkle_remote.failures.raising import raise_failures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.errors import CallTimeoutError
    from twinkle_remote.protocol.backend import Backend, Reply, WorkerGroup
    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.sessions.stats import CallRecord

CAUSE_SECONDS = 1.0
_LEAST_SECONDS = 0.5  # that reading a result may take, so that one that is near is there also at a timeout of 0


class CallRuntime(Protocol):
    """What a call needs of the runtime that it belongs to."""

    @property
    def backend(self) -> Backend:
        """Where the call runs."""

    @property
    def closed(self) -> bool:
        """Whether the session is over, and no answer arrives any more."""

    def refusal(self, what: str) -> str:
        """Why `what`, the result of a call, cannot be had of a closed session."""

    def call_completed(self, call: PendingCall) -> None:
        """Every worker has answered, or the lazy result of a failed call was released."""

    def call_seen(self, call: PendingCall) -> None:
        """The failure of a call was raised to a caller."""


class PendingCall:
    """One remote call; several threads may wait for it.

    Args:
        runtime: Where it runs.
        group: The called workers' group.
        name: Class.method.
        spec: Options of the function; its timeout counts from now.
        mesh: Mesh of the component, or None.
        replies: One for each called rank, ascending by rank.
        each: Every called rank was given rows of its own; None where only the outcomes will tell.
        line: File and line of the caller.
        record: Where its figures are written when it is done.
        sources: Calls whose results it was given.

    Attributes:
        seen: A caller was given its failure.
        held: Its lazy result exists, so that its failure may still be read.
        awaited: Number of callers that wait for it now.
        handed_on: Its result was passed to another call, which fails with it.
        logged: Its failure was logged, because no caller had waited for it.
        prefetched: It was made ahead of its use: no session waits for it, or logs or raises its failure.
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
        self.name = name
        self.spec = spec
        self.mesh = mesh
        self.ranks = tuple(reply.rank for reply in replies)
        self.seen = False
        self.held = False
        self.awaited = 0
        self.handed_on = False
        self.logged = False
        self.prefetched = False
        self._runtime = runtime
        self._group = group
        self._each = each
        self._replies: Mapping[int, Reply] = {reply.rank: reply for reply in replies}
        self._pending = list(replies)
        self._outcomes: dict[int, Outcome] = {}
        self._failures: list[Failure] = []
        self._failed_at = 0.0
        self._line = line
        self._record = record
        self._sources = tuple(sources)
        self._deadline = None if spec.timeout is None else time.monotonic() + spec.timeout
        self._lock = threading.Lock()

    def replies(self) -> Sequence[Reply]:
        """The replies of all ranks."""
        return tuple(self._replies.values())

    def reply(self, rank: int) -> Reply:
        """The reply of one rank, which a consumer's task can be given."""
        return self._replies[rank]

    def outcome(self, rank: int) -> Outcome:
        """The outcome of one rank, after `wait`."""
        return self._outcomes[rank]

    @property
    def each(self) -> bool | None:
        """Whether every called rank was given rows of its own; None where that is not known yet."""
        if self._each is None and not self._pending:
            self._each = any(outcome.rows_given is not None for outcome in self._outcomes.values())
        return self._each

    def fetch_all(self, ranks: Sequence[int], timeout: float | None, began: float) -> Sequence[Any]:
        """The values of several ranks, on this process.

        Args:
            ranks: Whose outcomes are there.
            timeout: Seconds that waiting and reading may take in all; the call's own timeout is a limit too.
            began: When they were asked for, in monotonic seconds.

        Raises:
            CallTimeoutError: They could not be read in time; the call is done, and they can be asked for again.
        """
        seconds = min([limit for limit in (timeout, self.spec.timeout) if limit is not None], default=None)
        return [self.fetch(self._outcomes[rank], seconds, began) for rank in ranks]

    def fetch(self, outcome: Outcome, timeout: float | None = None, began: float = 0.0) -> Any:
        """The value of an outcome, on this process; see `fetch_all`."""
        self._check_open()
        left = None if timeout is None else max(_LEAST_SECONDS, began + timeout - time.monotonic())
        try:
            value, size = self._runtime.backend.store.get(outcome.payload, timeout=left)
        except StoreTimeoutError as error:
            raise self._unread(outcome.rank, timeout or 0.0, error) from None
        except WorkerDiedError as error:
            head = f"the result of {self.name} on {self.label(outcome.rank)} cannot be read: {error}"
            raise WorkerDiedError(f"{head}\n  called from {self._line}") from error
        except TwinkleError:
            raise
        except Exception as error:  # whatever the user's class raises when it is made again
            head = f"{self.name}: the result of {self.label(outcome.rank)} arrived, but cannot be opened here"
            text = f"{head}: {type(error).__name__}: {error}\n  called from {self._line}"
            raise CollectError(text) from error
        self._record.driver_fetched += size
        return value

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        if self._pending and not self._runtime.closed:
            self._reap(0.0)
        return not self._pending

    def failed(self) -> bool:
        """Whether a worker is known to have failed; never waits."""
        return bool(self._failures)

    def failed_at(self) -> float:
        """When it failed, or passed its deadline, in seconds of the wall clock; 0 where it did neither."""
        if self._failures or self._deadline is None:
            return self._failed_at
        return time.time() - (time.monotonic() - self._deadline)

    def failure_text(self) -> str:
        """What is known of the failure, in a line."""
        if not self._failures:
            return f"{self.name} on {self.where()} is past its deadline; called from {self._line}"
        first = self._failures[0]
        what = f"{first.method or self.name} on {first.label}: {first.type_name}: {first.message}"
        return f"{what}; called from {self._line}"

    def unseen(self) -> bool:
        """Whether it failed, or is late, and no caller was given that failure or the one that caused it."""
        if self.seen or self.prefetched or not (self._failures or self.late()):
            return False
        return not any(source.seen and source.failed() for source in self._sources)

    def raise_unseen(self, others: int = 0) -> None:
        """Raise the failure, or the lateness, that no caller was given.

        Args:
            others: How many other calls failed like that.
        """
        try:
            self._raise_failures()
            raise self._lateness(self.spec.timeout)
        except TwinkleError as error:
            more = f"; {others} more like it {'is' if others == 1 else 'are'} logged" if others else ""
            error.add_note(f"  nobody had waited for this call when the session ended{more}")
            raise

    def released(self) -> None:
        """Its lazy result was deleted: a failure that no caller was given is kept and logged."""
        self.held = False
        if self._failures and not self._pending:
            self._runtime.call_completed(self)

    def late(self) -> bool:
        """Whether the deadline has passed before every worker answered."""
        return self._deadline is not None and time.monotonic() >= self._deadline and not self.done()

    def pending(self) -> Sequence[Reply]:
        """Replies that are not known to be there."""
        return tuple(self._pending)

    def ended(self) -> Sequence[bool]:
        """For each rank, whether its iterator is at its end; after `wait`."""
        return [self._outcomes[rank].ended for rank in self.ranks]

    def wait(self, timeout: float | None = None) -> None:
        """Wait for every worker.

        Args:
            timeout: Seconds to wait, beside the call's own deadline; None adds no limit.

        Raises:
            RemoteCallError: A worker raised: the first in completion order, at once, others folded under it.
            WorkerDiedError: A worker was lost.
            CallTimeoutError: The time is over, that of a call whose result it was given included; names the ranks that
                are done and those that are not.
            NotInitializedError: It was in flight at a shutdown.
        """
        until = None if timeout is None else time.monotonic() + timeout
        self.awaited += 1
        try:
            while self._pending and not self._failures:
                self._wait_a_while(timeout, until)
            if self._failures:
                self._wait_for_the_cause()
        finally:
            self.awaited -= 1
        if self._failures:
            if self._failures[0].died:  # the end of a worker that a shutdown ended is no death
                self._check_open()
            if self._pending and not self._runtime.closed:
                self._reap(0.0)
            self._raise_failures()

    def ends_within(self, seconds: float) -> bool:
        """Wait for so long at most, and raise nothing; whether `wait` would not wait any more.

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
        over = not self._pending or bool(self._failures) or self._runtime.closed
        return over or any(call.late() for call in (*self._sources, self))

    def _wait_a_while(self, timeout: float | None, until: float | None) -> None:
        """Wait until a worker has answered or a limit is over."""
        self._check_open()
        limits = [limit for limit in (until, *self._deadlines()) if limit is not None]
        if self._reap(max(0.0, min(limits) - time.monotonic()) if limits else None):
            return
        self._check_open()
        for call in (*self._sources, self):
            if call.late():
                self._see()
                raise call._lateness(call.spec.timeout)
        if until is not None and time.monotonic() >= until:
            raise self._lateness(timeout)

    def _wait_for_the_cause(self) -> None:
        """Wait a moment for the failure behind lost connections: a death arrives later than its peers' errors."""
        until = time.monotonic() + CAUSE_SECONDS
        while self._pending and only_lost_peers(self._failures) and not self._runtime.closed:
            if not self._reap(max(0.0, until - time.monotonic())):
                return

    def _raise_failures(self) -> None:
        """Raise the first failure, where there is one."""
        if self._failures:
            self._see()
            raise_failures(self.name, self._group.name, self._failures, self._line)

    def _see(self) -> None:
        """Mark its failure, and those that caused it, as given to a caller."""
        self.seen = True
        self._runtime.call_seen(self)
        for source in self._sources:
            source.done()
            if not source.seen and (source.failed() or source.late()):
                source._see()

    def state(self) -> str:
        """The call's state in a few words; never waits."""
        done = self.done()
        if done or self._failures:
            return "failed" if self._failures else "done"
        if self._runtime.closed:
            return "lost at shutdown"
        return f"{len(self._outcomes)} of {len(self._replies)} workers done"

    def where(self) -> str:
        """Group, number of called workers, and the mesh: `actor[8] dp=2 tp=4`."""
        dims = () if self.mesh is None else zip(self.mesh.dim_names, self.mesh.shape, strict=True)
        return " ".join([f"{self._group.name}[{len(self._replies)}]", *(f"{dim}={size}" for dim, size in dims)])

    def label(self, rank: int) -> str:
        """A called worker in a few characters, with its coordinate."""
        place = self.mesh.coordinate(rank) if self.mesh and rank in self.mesh else None
        return self._group.info(rank).label(place)

    def _deadlines(self) -> Sequence[float | None]:
        return [call._deadline for call in (self, *self._sources) if call._pending]

    def _check_open(self) -> None:
        if self._runtime.closed:
            raise NotInitializedError(self._runtime.refusal(f"the result of {self.name}, called from {self._line},"))

    def _reap(self, timeout: float | None) -> bool:
        """Take in what is there; False when nothing came before the timeout."""
        backend = self._runtime.backend
        waiting = self._pending
        ready = backend.wait(waiting, timeout) if waiting else ()
        if not ready:
            return not self._pending
        with self._lock:
            fresh = [reply for reply in ready if reply.rank not in self._outcomes]
            failed = []
            for reply in fresh:
                outcome = backend.outcome(reply)
                self._outcomes[outcome.rank] = outcome
                self._record.add(outcome)
                if outcome.failure is not None:
                    failed.append((outcome.started + outcome.seconds, self._first_cause(outcome.failure)))
            self._failures += [failure for _, failure in sorted(failed, key=lambda end: end[0])]
            self._pending = [reply for reply in self._pending if reply.rank not in self._outcomes]
            if failed and not self._failed_at:
                self._failed_at = min(end for end, _ in failed) or time.time()
            if not self._pending:
                if not self._failures:
                    self._sources = ()
                self._runtime.call_completed(self)
        return True

    def _first_cause(self, failure: Failure) -> Failure:
        """The failure itself; where an argument's call failed, the failure of that call."""
        if failure.upstream:
            for source in self._sources:
                source.done()
                if source._failures:
                    return source._failures[0].as_upstream()
        return failure

    def _lateness(self, seconds: float | None) -> CallTimeoutError:
        pending = [reply.rank for reply in self._pending]
        done = sorted(self._outcomes)
        head = (
            f"{self.name} on {self.where()} is not done after {seconds:g} s: "
            f"{f'ranks {done} are done' if done else 'no rank is done'}, "
            f"ranks {pending} are not: {', '.join(map(self.label, pending))}"
        )
        return lateness(head, self._line, done, pending, self._group.stacks(pending))

    def _unread(self, rank: int, seconds: float, why: object) -> CallTimeoutError:
        done = [other for other in self.ranks if other != rank]
        head = (
            f"{self.name} on {self.where()} is done, but the result of {self.label(rank)} was not read within "
            f"{seconds:g} s: {why}"
        )
        return lateness(head, self._line, done, [rank], self._group.stacks([rank]))
