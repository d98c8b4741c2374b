"""A worker's report of the calls that it has made itself, and a failure of a call that no caller has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_remote.protocol.failure import Failure


@dataclass(frozen=True, slots=True)
class UnseenFailure:
    """A failed or late call that no caller waited for; it pickles.

    Attributes:
        name: Class.method.
        group: Name of the called group.
        line: File and line of the caller, and the worker that it is, if it is one.
        failed_at: When it failed, in seconds of the wall clock.
        failures: In completion order; empty for a call past its deadline.
        late: The error of a call past its deadline.
    """

    name: str
    group: str
    line: str
    failed_at: float
    failures: tuple[Failure, ...] = ()
    late: Exception | None = None


@dataclass(frozen=True, slots=True)
class OwnCalls:
    """The calls that a worker has made itself.

    Attributes:
        started: Number of calls that it has made so far.
        in_flight: Class.method of each call that is not done, but for those that failed or are past their deadline.
        given_up: Group and rank of the workers that have not answered calls which failed or are past their deadline.
        unseen: The first failure that no caller has seen, since the last answer.
        others: Number of further ones; the worker has logged them.
    """

    started: int = 0
    in_flight: tuple[str, ...] = ()
    given_up: frozenset[tuple[str, int]] = frozenset()
    unseen: UnseenFailure | None = None
    others: int = 0
