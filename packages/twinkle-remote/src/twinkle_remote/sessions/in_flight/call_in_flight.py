"""The interface of a call in flight, as far as a session knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.own_calls import UnseenFailure
    from twinkle_remote.protocol.spec import FunctionSpec


class CallInFlight(Protocol):
    """A call that is not known to be done, or whose failure no caller has seen; hashable by identity.

    Attributes:
        name: Class.method.
        spec: Options of the function.
        group_name: Name of the called group.
        seen: Its failure was raised to a caller.
        held: Its lazy result exists, so that its failure can still be read.
        awaited: Number of callers that wait for it now.
        handed_on: Its result was passed to another call, which fails with it.
        logged: Its failure was logged, because no caller had waited for it.
        prefetched: A session does not wait for it, and does not log or raise its failure.
    """

    name: str
    spec: FunctionSpec
    group_name: str
    seen: bool
    held: bool
    awaited: int
    handed_on: bool
    logged: bool
    prefetched: bool

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""

    def failed(self) -> bool:
        """Whether a worker is known to have failed; never waits."""

    def pending(self) -> Sequence[Reply]:
        """Replies that are not known to be done."""

    def overdue(self) -> CallInFlight | None:
        """The late call that it waits for, or itself if it is late; None without one."""

    def cancel(self) -> None:
        """Cancel it on the ranks that have not answered, if it runs on their event loops; returns at once."""

    def comes_from_a_source(self) -> bool:
        """Whether its failure follows from that of another call."""

    def unseen(self) -> bool:
        """Whether it failed or is late, and no caller has seen that failure or its cause."""

    def unseen_failure(self) -> UnseenFailure:
        """Its failure or lateness, in a form that pickles; from now on it counts as seen."""

    def failed_at(self) -> float:
        """Time of its failure or its passed deadline, in seconds of the wall clock; 0 without either."""

    def failure_text(self) -> str:
        """The known failure in one line."""
