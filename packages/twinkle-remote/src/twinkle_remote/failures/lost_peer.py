"""Detects failures whose likely cause is another one: a lost peer's own failure, or a mismatch that ended a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.protocol.messages import Outcome

# errors of Gloo and NCCL on ranks that wait for an ended rank
_TYPES = ("RuntimeError", "DistBackendError", "DistNetworkError", "CollectiveError", "CollectiveTimeoutError")
_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited or there was a network error",
    "no answer from rank(s)",
)
CAUSE_SECONDS = 1.0  # a cause may be reported after what follows from it
_WITNESS_SECONDS = 0.5  # in a collective the peers of a dead worker fail at once


def lost_a_peer(failure: Failure) -> bool:
    """Whether a failure reports a process group's lost connection to an ended process."""
    named = failure.type_name.rpartition(".")[2] in _TYPES
    return named and not failure.died and any(text in failure.message for text in _TEXTS)


def raised_itself(outcome: Outcome) -> bool:
    """Whether a rank failed by what its own code raised, not by the end of another rank or of its own process."""
    failure = outcome.failure
    return failure is not None and not (failure.died or failure.upstream or failure.unanswered or lost_a_peer(failure))


def is_mismatch(failure: Failure) -> bool:
    """Whether ranks entered different collectives: Gloo ends a rank that receives more than it expects."""
    return failure.type_name.rpartition(".")[2] == "CollectiveMismatchError"


def seconds_for_cause(failures: Sequence[Failure]) -> float:
    """Seconds that the cause, or what peers report of a death, may take to arrive; 0 if a failure has a cause."""
    if all(map(lost_a_peer, failures)):
        return CAUSE_SECONDS
    return _WITNESS_SECONDS if all(map(_died_now, failures)) else 0.0


def _died_now(failure: Failure) -> bool:
    return failure.died and not failure.upstream and not failure.repeated
