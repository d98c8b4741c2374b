"""One step of a sync on both sides at once: waited for in completion order, its first failure named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from twinkle_ray.weights.errors import WeightSyncError, WeightSyncTimeoutError
from twinkle_ray.weights.rendezvous.heartbeat import LivenessMonitor
from twinkle_remote.errors import CallTimeoutError, RemoteCallError, TwinkleError, WorkerDiedError

if TYPE_CHECKING:
    from twinkle_ray.weights.controller.participants import Participants, Pending
    from twinkle_ray.weights.messages import Side
    from twinkle_ray.weights.rendezvous.session import Phase, SessionStore
    from twinkle_remote.protocol import Failure

_log = logging.getLogger("twinkle.ray")
GRACE_SECONDS = 2.0
_SHORTEST, _LONGEST = 0.0003, 0.004
_KEPT = "the target keeps the weights that it had"
_OWN = (1, 2)  # weights of a rank's own error, and of lateness

Ask: TypeAlias = tuple[Callable[..., object], Sequence[tuple[object, ...]]]


@dataclass(frozen=True, slots=True)
class Watched:
    """The generation in which a step runs.

    Attributes:
        board: To abort it, and to read signs of life.
        phase: What the processes call this step.
        silence: Seconds without a sign of life that are too many.
        processes: Those that take part in the step.
        who: Names a process.
    """

    board: SessionStore
    phase: Phase
    silence: float
    processes: Sequence[int]
    who: Callable[[int], str]


def run_step(
    name: str,
    crews: Mapping[Side, Participants],
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
        watched: The generation, once there is one.

    Returns:
        Each side's results in rank order.

    Raises:
        WeightSyncError: With the first failure that is nobody else's consequence.
    """
    head = f"the weight sync failed at its step {name!r}, and {_KEPT}"
    pending: dict[Side, Pending] = {}
    silent = ""
    try:
        for side, ask in asks.items():
            pending[side] = crews[side].start(*ask)
        if all(crews[side].polled for side in asks):
            silent = _wait(pending, deadline, watched)
        if not silent and not any(one.failed() for one in pending.values()):
            return {side: one.results(max(0.0, deadline - time.monotonic())) for side, one in pending.items()}
    except TwinkleError as error:
        first: TwinkleError | None = error
    else:
        first = None
    reason = _silence(silent, watched)
    if watched is not None:
        watched.board.abort(reason or f"a rank failed at the step {name!r}")
        _wait(pending, time.monotonic() + GRACE_SECONDS, None, all_of_them=True)
    causes = [] if first is None else _causes(first)
    raise _verdict(head, causes + _gather(pending, wait_over=not reason), reason)


def run_last_step(
    name: str,
    crews: Mapping[Side, Participants],
    asks: Mapping[Side, Ask],
    deadline: float,
    watched: Watched | None,
    placed: str,
) -> bool:
    """Run what follows a commit on both sides: nothing is taken back, and a death is no failure of the sync.

    Args:
        name: Of the step, for messages.
        crews: Both sides.
        asks: The function and each rank's arguments.
        deadline: On the monotonic clock.
        watched: The processes of the target.
        placed: What is in place, for messages.

    Returns:
        Whether every rank has done it; what became of the others is logged.

    Raises:
        WeightSyncError: If a rank raised, or a rank of the target is stopped or late.
    """
    pending: dict[Side, Pending] = {}
    causes: list[_Cause] = []
    for side, ask in asks.items():
        try:
            pending[side] = crews[side].start(*ask)
        except TwinkleError as error:
            causes.extend(_causes(error))
    target: dict[Side, Pending] = {side: one for side, one in pending.items() if side == "target"}
    silent = _wait(target, deadline, watched)
    if not silent and any(one.failed() for one in target.values()):
        only_deaths = all(cause.weight == 0 for cause in _gather(target, wait_over=False))
        _wait(target, deadline if only_deaths else time.monotonic() + GRACE_SECONDS, None, all_of_them=True)
    _wait(pending, time.monotonic() + GRACE_SECONDS, None, all_of_them=True)
    causes += _gather(target, wait_over=not silent)
    causes += _gather({side: one for side, one in pending.items() if side == "source"}, wait_over=False)
    failures = [cause for cause in causes if cause.weight in _OWN]
    if silent or failures:
        head = f"the weight sync failed at its step {name!r}, and {placed}"
        raise _verdict(head, failures, _silence(silent, watched))
    for cause in causes:
        _log.warning("%s; at the step %r after it %s", placed, name, cause.text)
    waiting = [crews[side].name for side, one in pending.items() if not one.done()]
    if waiting:
        _log.warning("%s; at the step %r after it %s does not answer", placed, name, ", ".join(waiting))
    return not causes and not waiting


def run_where_alive(name: str, crew: Participants, ask: Ask) -> None:
    """Run a function on each rank of a side that may have lost some, and wait for those that answer soon.

    Ranks that are stopped run it when they go on: a worker's calls keep their order.
    """
    try:
        pending = crew.start(*ask)
    except TwinkleError as error:
        _log.warning("%s could not be asked for on %s: %s", name, crew.name, error)
        return
    _failures_soon(pending, crew)


def death_behind(name: str, error: WeightSyncError, crew: Participants, ask: Ask) -> WeightSyncError:
    """The death of a rank that took no part in a step that failed, where it is behind that; else the step's error.

    Args:
        name: Of the step.
        error: Its error.
        crew: The side that took no part.
        ask: What every rank that lives answers at once.
    """
    try:
        causes = _failures_soon(crew.start(*ask), crew)
    except TwinkleError as failure:
        causes = _causes(failure)
    deaths = [cause for cause in causes if cause.weight == 0]
    if not deaths:
        return error
    verdict = _verdict(f"the weight sync failed at its step {name!r}, and {_KEPT}", deaths, "")
    verdict.__cause__ = error
    return verdict


def _failures_soon(pending: Pending, crew: Participants) -> list[_Cause]:
    """Failures of the ranks that answer soon, on either side."""
    if crew.polled:
        _wait({"target": pending}, time.monotonic() + GRACE_SECONDS, None, all_of_them=True)
    return _gather({"target": pending}, wait_over=False)


def _wait(
    pending: Mapping[Side, Pending], deadline: float, watched: Watched | None, *, all_of_them: bool = False
) -> str:
    """Wait until every call is done, one has failed, a process is silent, or the time is over."""
    monitor = (
        None if watched is None else LivenessMonitor(watched.board, watched.phase, watched.processes, watched.silence)
    )
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


@dataclass(frozen=True, slots=True)
class _Cause:
    """One rank's part in a failure; the lowest weight is what the others follow from."""

    weight: int
    text: str
    error: TwinkleError


def _silence(silent: str, watched: Watched | None) -> str:
    return f"{silent} showed no sign of life for {watched.silence:g} s" if silent and watched else ""


def _gather(pending: Mapping[Side, Pending], *, wait_over: bool) -> list[_Cause]:
    """What failed, which is seen by that; with `wait_over`, what has not answered is late."""
    causes: list[_Cause] = []
    for one in pending.values():
        failed, done = one.failed(), one.done()
        if failed or not done:
            try:
                one.results(0.0)
            except TwinkleError as error:
                causes.extend(_causes(error) if failed or wait_over else [])
    return causes


def _verdict(head: str, causes: Sequence[_Cause], reason: str) -> WeightSyncError:
    """The failure to show: a death, then silence, then a rank's own error, then lateness, then what followed."""
    culprit = min(causes, key=lambda cause: cause.weight, default=None)
    if reason and (culprit is None or culprit.weight > 0):
        verdict: WeightSyncError = WeightSyncTimeoutError(f"{head}: {reason}: stopped, or stuck")
    else:
        assert culprit is not None, "a step that failed has an error"
        kind = WeightSyncTimeoutError if isinstance(culprit.error, CallTimeoutError) else WeightSyncError
        verdict = kind(f"{head}: {culprit.text}")
    verdict.__cause__ = None if culprit is None else culprit.error
    return verdict


def _causes(error: TwinkleError) -> list[_Cause]:
    if isinstance(error, RemoteCallError) and error.failures:
        return [_Cause(_weight(failure), _text(failure, error), error) for failure in error.failures]
    if isinstance(error, WorkerDiedError):
        return [_Cause(0, str(error), error)]
    return [_Cause(2 if isinstance(error, CallTimeoutError) else 1, str(error), error)]


def _weight(failure: Failure) -> int:
    if failure.died:
        return 0
    kind = failure.type_name.rpartition(".")[2]
    return {"PeerFailedError": 3, "LinkLostError": 4}.get(kind, 1)


def _text(failure: Failure, error: RemoteCallError) -> str:
    if failure.died:
        return f"{failure.label} died ({failure.node or 'node unknown'}): {failure.message}"
    if failure is error.failures[0]:
        return str(error)
    return f"{failure.label} ({failure.node}): {failure.type_name}: {failure.message}\n{failure.trace}"
