"""The call from whose failure another one's follows: one that makes its argument."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from twinkle_remote.failures.lost_peer import CAUSE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.call_runtime import CallRuntime
    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.failure import Failure


class SourceCall(Protocol):
    """What is asked of a call that makes an argument of another one."""

    def done(self) -> bool:
        """Whether every worker has answered."""

    def failed(self) -> bool:
        """Whether a worker is known to have failed."""

    def pending(self) -> Sequence[Reply]:
        """Replies that are not known to be done."""

    def failures(self) -> Sequence[Failure]:
        """The known failures."""


S = TypeVar("S", bound=SourceCall)


def cause_among(sources: Sequence[S], failures: Sequence[Failure]) -> S | None:
    """The source from whose failure some failures follow; None if none is known to have failed."""
    for source in sources:
        source.done()
    failed = [source for source in sources if source.failed()]
    told = set(map(_identity, failures))
    same = (source for source in failed if not told.isdisjoint(map(_identity, source.failures())))
    return next(same, next(iter(failed), None))


def wait_for_a_source(runtime: CallRuntime, sources: Sequence[SourceCall]) -> None:
    """Wait shortly for the failure of a source: two calls' answers may arrive in either order."""
    until = time.monotonic() + CAUSE_SECONDS
    while not runtime.closed:
        pending = [reply for source in sources if not source.done() for reply in source.pending()]
        if not pending or any(source.failed() for source in sources):
            return
        if not runtime.backend.wait(pending, max(0.0, until - time.monotonic())):
            return


def _identity(failure: Failure) -> tuple[str, ...]:
    """What two calls are told of one failure."""
    return failure.label, failure.method, failure.type_name, failure.message
