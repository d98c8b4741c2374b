"""A call in flight: its replies, its deadline, and what is raised when it fails or is late."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CallTimeoutError
from twinkle_remote.failure import raise_failures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.failure import Failure
    from twinkle_remote.protocol import Backend, Outcome, Reply, WorkerGroup
    from twinkle_remote.spec import FunctionSpec
    from twinkle_remote.stats import CallRecord


class Call:
    """One remote call.

    Args:
        backend: Where it runs.
        group: The called workers' group.
        name: Class.method.
        spec: Options of the function.
        mesh: Mesh of the component, or None.
        replies: One for each called rank, ascending by rank.
        line: File and line of the caller.
        record: Where its figures are written when it is done.
        timeout: Seconds from now to its deadline; None for no deadline.
    """

    def __init__(
        self,
        backend: Backend,
        group: WorkerGroup,
        name: str,
        spec: FunctionSpec,
        mesh: DeviceMesh | None,
        replies: Sequence[Reply],
        *,
        line: str,
        record: CallRecord,
        timeout: float | None,
    ) -> None:
        self.name = name
        self.spec = spec
        self.mesh = mesh
        self.looked_at = False
        self._backend = backend
        self._group = group
        self._replies: Mapping[int, Reply] = {reply.rank: reply for reply in replies}
        self._pending = list(replies)
        self._outcomes: dict[int, Outcome] = {}
        self._failures: list[Failure] = []
        self._line = line
        self._record = record
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout

    @property
    def ranks(self) -> Sequence[int]:
        """Called ranks, ascending."""
        return tuple(self._replies)

    def reply(self, rank: int) -> Reply:
        """The reply of one rank, which a consumer's task can be given."""
        return self._replies[rank]

    def outcome(self, rank: int) -> Outcome:
        """The outcome of one rank, after `wait`."""
        return self._outcomes[rank]

    def fetch(self, outcome: Outcome) -> Any:
        """The value of an outcome, on this process."""
        value, size = self._backend.store.get(outcome.payload)
        self._record.driver_fetched += size
        return value

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        if self._pending:
            self._reap(0.0)
        return not self._pending

    def failed(self) -> bool:
        """Whether a worker is known to have failed; never waits."""
        return bool(self._failures)

    def failure_text(self) -> str:
        """What is known of the failure, in a line."""
        return f"{self.name} called from {self._line}: " + "; ".join(
            f"{failure.label} {failure.type_name}: {failure.message}" for failure in self._failures[:1]
        )

    def settle(self) -> None:
        """Wait until every worker has answered, whatever it is; raises only when the deadline passes."""
        while self._pending:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if not self._reap(left):
                self._raise_late(self._timeout)

    def ended(self) -> Sequence[bool]:
        """For each rank, whether its iterator is at its end; after `wait`."""
        return [outcome.ended for outcome in self._outcomes.values()]

    def wait(self, timeout: float | None = None) -> None:
        """Wait for every worker.

        Args:
            timeout: Seconds to wait, beside the call's own deadline; None adds no limit.

        Raises:
            RemoteCallError: A worker raised: the first in completion order, at once, others folded under it.
            WorkerDiedError: A worker was lost.
            CallTimeoutError: The time is over; names the ranks that are done and those that are not.
        """
        self.looked_at = True
        until = None if timeout is None else time.monotonic() + timeout
        if self._deadline is not None and (until is None or self._deadline < until):
            until, timeout = self._deadline, self._timeout
        while self._pending and not self._failures:
            if not self._reap(None if until is None else max(0.0, until - time.monotonic())):
                self._raise_late(timeout)
        if self._failures:
            if self._pending:
                self._reap(0.0)
            raise_failures(self.name, self._group.name, self._failures, self._line)

    def state(self) -> str:
        """The call's state in a few words; never waits."""
        if self.done():
            return "failed" if self._failures else "done"
        return f"{len(self._outcomes)} of {len(self._replies)} workers done"

    def where(self) -> str:
        """Group and number of called workers."""
        return f"{self._group.name}[{len(self._replies)}]"

    def _reap(self, timeout: float | None) -> bool:
        ready = set(self._backend.wait(self._pending, timeout))
        if not ready:
            return False
        for reply in [reply for reply in self._pending if reply in ready]:
            outcome = self._backend.outcome(reply)
            self._outcomes[reply.rank] = outcome
            self._record.add(outcome)
            if outcome.failure is not None:
                self._failures.append(outcome.failure)
        self._pending = [reply for reply in self._pending if reply not in ready]
        return True

    def _raise_late(self, timeout: float | None) -> None:
        pending = [reply.rank for reply in self._pending]
        late = [self._group.info(rank).label(self.mesh.coordinate(rank) if self.mesh else None) for rank in pending]
        rows = [
            f"{self.name} on {self.where()} is not done after {timeout:g} s: ranks {sorted(self._outcomes)} are done, "
            f"ranks {pending} are not: {', '.join(late)}",
            f"  called from {self._line}",
        ]
        for rank, stack in self._group.stacks(pending).items():
            rows.append(f"  rank {rank} is at:")
            rows.extend("    " + row for row in stack.rstrip().splitlines())
        raise CallTimeoutError("\n".join(rows), sorted(self._outcomes), pending)
