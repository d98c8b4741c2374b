"""One step of a sync on both sides at once: waited for in completion order, its first failure named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from twinkle_ray.weights.errors import LinkLostError, PeerFailedError, WeightSyncError, WeightSyncTimeoutError
from twinkle_ray.weights.rendezvous import Board, Monitor
from twinkle_remote.errors import CallTimeoutError, TwinkleError, WorkerDiedError

if TYPE_CHECKING:
    from twinkle_ray.weights.crew import Crew, Pending
    from twinkle_ray.weights.program import Side

_log = logging.getLogger("twinkle.ray")
GRACE_SECONDS = 2.0
_SHORTEST, _LONGEST = 0.0003, 0.01

Ask: TypeAlias = tuple[Callable[..., object], Sequence[tuple[object, ...]]]


@dataclass(frozen=True, slots=True)
class Watched:
    """The epoch in which a step runs.

    Attributes:
        board: To abort it, and to read signs of life.
        phase: What the processes call this step.
        silence: Seconds without a sign of life that are too many.
        who: Names a process.
    """

    board: Board
    phase: str
    silence: float
    who: Callable[[int], str]


def run_step(
    name: str,
    crews: Mapping[Side, Crew],
    asks: Mapping[Side, Ask],
    deadline: float,
    watched: Watched | None = None,
) -> dict[Side, list[Any]]:
    """Run a function on each rank of one or both sides.

    Args:
        name: Of the step, for messages.
        crews: Both sides.
        asks: The function and each rank's arguments, for the sides that take part.
        deadline: On the monotonic clock.
        watched: The epoch, once there is one.

    Returns:
        Each side's results in rank order.

    Raises:
        WeightSyncError: With the first failure that is nobody else's consequence.
    """
    try:
        pending = {side: crews[side].start(*ask) for side, ask in asks.items()}
    except TwinkleError as error:
        raise WeightSyncError(f"the sync failed at its step {name!r}: {error}") from error
    if not all(crews[side].polled for side in asks):
        return {side: _result(name, one, deadline) for side, one in pending.items()}
    silent = _wait(pending, deadline, watched)
    late = time.monotonic() >= deadline
    if not silent and not late and not any(one.failed() for one in pending.values()):
        return {side: _result(name, one, deadline) for side, one in pending.items()}
    reason = f"{silent} showed no sign of life for {watched.silence:g} s" if silent and watched else ""
    if watched is not None:
        watched.board.abort(reason or f"the controller gave up at the step {name!r}")
        _wait(pending, time.monotonic() + GRACE_SECONDS, None, all_of_them=True)
    raise _verdict(name, pending, reason)


def settle_for(name: str, crew: Crew, ask: Ask) -> None:
    """Run a function on each rank of a side that may have lost some, and wait for those that answer soon.

    Ranks that are stopped run it when they go on: a worker's calls keep their order.
    """
    try:
        pending = crew.start(*ask)
    except TwinkleError as error:
        _log.warning("%s could not be asked for on %s: %s", name, crew.name, error)
        return
    if crew.polled:
        _wait({"target": pending}, time.monotonic() + GRACE_SECONDS, None, all_of_them=True)


def _wait(
    pending: Mapping[Side, Pending], deadline: float, watched: Watched | None, *, all_of_them: bool = False
) -> str:
    """Wait until every call is done, one has failed, a process is silent, or the time is over."""
    monitor = None if watched is None else Monitor(watched.board, watched.phase, watched.silence)
    nap = _SHORTEST
    while time.monotonic() < deadline:
        done = [one.done() for one in pending.values()]
        if all(done) or (not all_of_them and any(one.failed() for one in pending.values())):
            return ""
        if monitor is not None and watched is not None:
            silent = monitor.silent()
            if silent:
                return ", ".join(watched.who(process) for process in silent)
        time.sleep(nap)
        nap = min(nap * 1.5, _LONGEST)
    return ""


def _result(name: str, pending: Pending, deadline: float) -> list[Any]:
    try:
        return pending.results(max(0.0, deadline - time.monotonic()))
    except TwinkleError as error:
        raise _wrapped(name, error) from error


def _verdict(name: str, pending: Mapping[Side, Pending], reason: str) -> WeightSyncError:
    """The failure to show: a death, then a failure of a rank's own, then silence and lateness, then consequences."""
    errors: list[TwinkleError] = []
    for one in pending.values():
        if one.done() or one.failed() or not reason:
            try:
                one.results(0.0)
            except TwinkleError as error:
                errors.append(error)
    if reason and not any(isinstance(error, WorkerDiedError) for error in errors):
        stopped = WeightSyncTimeoutError(f"the sync failed at its step {name!r}: {reason}: stopped, or stuck")
        stopped.__cause__ = errors[0] if errors else None
        return stopped
    assert errors, "a step that failed has an error"
    first = min(errors, key=_rank)
    failure = _wrapped(name, first)
    failure.__cause__ = first
    return failure


def _rank(error: TwinkleError) -> int:
    if isinstance(error, WorkerDiedError):
        return 0
    if isinstance(error, PeerFailedError | LinkLostError):
        return 3
    return 2 if isinstance(error, CallTimeoutError) else 1


def _wrapped(name: str, error: TwinkleError) -> WeightSyncError:
    kind = WeightSyncTimeoutError if isinstance(error, CallTimeoutError) else WeightSyncError
    return kind(f"the sync failed at its step {name!r}, and the target keeps the weights that it had: {error}")
