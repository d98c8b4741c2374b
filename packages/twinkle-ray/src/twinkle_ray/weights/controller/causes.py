"""Why a step failed: the failures of all ranks, and the one among them that the others follow from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_ray.weights.errors import WeightSyncError, WeightSyncTimeoutError
from twinkle_remote.errors import CallTimeoutError, RemoteCallError, TwinkleError, WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_ray.weights.controller.participants import Pending
    from twinkle_remote.protocol import Failure

DEATH, OWN_ERROR, LATE, PEER_FAILED, LINK_LOST = range(5)


@dataclass(frozen=True, slots=True)
class Cause:
    """One rank's part in a failure.

    Attributes:
        level: Causes of a higher level follow from those of a lower one.
        text: For the message.
        error: As the call raised it.
    """

    level: int
    text: str
    error: TwinkleError


def gather_causes(pending: Iterable[Pending], *, late_too: bool) -> list[Cause]:
    """The failures of calls; with `late_too`, a call without an answer is one of them."""
    causes: list[Cause] = []
    for one in pending:
        failed, done = one.failed(), one.done()
        if failed or not done:
            try:
                one.results(0.0)
            except TwinkleError as error:
                causes.extend(causes_of(error) if failed or late_too else [])
    return causes


def causes_of(error: TwinkleError) -> list[Cause]:
    """The causes that one error holds: one for each rank that has failed."""
    if isinstance(error, RemoteCallError) and error.failures:
        return [Cause(_level(failure), _text(failure, error), error) for failure in error.failures]
    if isinstance(error, WorkerDiedError):
        return [Cause(DEATH, str(error), error)]
    return [Cause(LATE if isinstance(error, CallTimeoutError) else OWN_ERROR, str(error), error)]


def first_cause(head: str, causes: Sequence[Cause], silence: str) -> WeightSyncError:
    """The error to raise: a death, then silence, then a rank's own error, then lateness, then what follows from those.

    Args:
        head: Start of the message.
        causes: Of all ranks.
        silence: Which processes are silent, for the message; "" when none is.
    """
    first = min(causes, key=lambda cause: cause.level, default=None)
    if silence and (first is None or first.level != DEATH):
        raised: WeightSyncError = WeightSyncTimeoutError(f"{head}: {silence}: stopped, or stuck")
    else:
        assert first is not None, "a step that failed has an error"
        kind = WeightSyncTimeoutError if isinstance(first.error, CallTimeoutError) else WeightSyncError
        raised = kind(f"{head}: {first.text}")
    raised.__cause__ = None if first is None else first.error
    return raised


def _level(failure: Failure) -> int:
    if failure.died:
        return DEATH
    kind = failure.type_name.rpartition(".")[2]
    return {"PeerFailedError": PEER_FAILED, "LinkLostError": LINK_LOST}.get(kind, OWN_ERROR)


def _text(failure: Failure, error: RemoteCallError) -> str:
    if failure.died:
        return f"{failure.label} died ({failure.node or 'node unknown'}): {failure.message}"
    if failure is error.failures[0]:
        return str(error)
    return f"{failure.label} ({failure.node}): {failure.type_name}: {failure.message}\n{failure.trace}"
