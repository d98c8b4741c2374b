"""One step of a sync on both sides at once: it waits for the ranks in completion order, and names the first failure."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from twinkle_ray.weights.controller.causes import DEATH, LATE, OWN_ERROR, causes_of, first_cause, gather_causes
from twinkle_ray.weights.rendezvous.heartbeat import LivenessMonitor
from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from twinkle_ray.weights.controller.causes import Cause
    from twinkle_ray.weights.controller.participants import Participants, Pending
    from twinkle_ray.weights.messages import Side
    from twinkle_ray.weights.rendezvous.session import Phase, SessionStore

_log = logging.getLogger("twinkle.ray")
GRACE_SECONDS = 2.0
_SHORTEST_NAP, _LONGEST_NAP = 0.0003, 0.004
_NAP_SHARE = 1 / 16  # of the time that a step has taken: it is noticed at most so much too late

StepCall: TypeAlias = tuple[Callable[..., object], Sequence[tuple[object, ...]]]


@dataclass(frozen=True, slots=True)
class Watched:
    """The processes of a step whose signs of life the controller watches.

    Attributes:
        session_store: Holds the signs of life, and the abort of the session.
        phase: Name of the step in the store.
        silence: A process without a sign of life for as many seconds counts as stopped.
        processes: Those that take part in the step.
        who: Describes a process, for messages.
        once_begun: A process counts from its first sign of life in the phase on: it may be busy before.
    """

    session_store: SessionStore
    phase: Phase
    silence: float
    processes: Sequence[int]
    who: Callable[[int], str]
    once_begun: bool = False


def run_step(
    name: str,
    both_sides: Mapping[Side, Participants],
    calls: Mapping[Side, StepCall],
    deadline: float,
    watched: Watched | None = None,
) -> dict[Side, list[Any]]:
    """Run a function on each rank of one or both sides.

    Args:
        name: Of the step, for messages.
        both_sides: The participants of each side.
        calls: The function and each rank's arguments, for the sides that take part.
        deadline: On the monotonic clock.
        watched: The processes to watch; None without a session.

    Returns:
        Each side's results in rank order.

    Raises:
        WeightSyncError: With the first failure that follows from no other.
    """
    pending: dict[Side, Pending] = {}
    silent = ""
    try:
        for side, call in calls.items():
            pending[side] = both_sides[side].start(*call)
        if all(both_sides[side].polled for side in calls):
            silent = _wait(pending.values(), deadline, watched)
        if not silent and not any(one.failed() for one in pending.values()):
            return {side: one.results(max(0.0, deadline - time.monotonic())) for side, one in pending.items()}
    except TwinkleError as error:
        first: TwinkleError | None = error
    else:
        first = None
    silence = _silence(silent, watched)
    if watched is not None:
        watched.session_store.abort(silence or f"a rank failed at the step {name!r}")
        wait_soon(pending.values())
    causes = [] if first is None else causes_of(first)
    causes += gather_causes(pending.values(), late_too=not silence)
    for one in pending.values():
        one.let_go()
    raise first_cause(failed_head(name), causes, silence)


class LastStep:
    """A step that takes nothing back, so that a death does not fail the sync; it begins at once.

    Args:
        name: Of the step, for messages.
        both_sides: The participants of each side.
        calls: The function and each rank's arguments.
    """

    def __init__(self, name: str, both_sides: Mapping[Side, Participants], calls: Mapping[Side, StepCall]) -> None:
        self._name, self._both_sides = name, both_sides
        self._pending: dict[Side, Pending] = {}
        self._causes: list[Cause] = []
        for side, call in calls.items():
            try:
                self._pending[side] = both_sides[side].start(*call)
            except TwinkleError as error:
                self._causes.extend(causes_of(error))

    def let_go(self) -> None:
        """Wait for it no more: the step before it has failed."""
        for one in self._pending.values():
            one.let_go()

    def finish(
        self, deadline: float, watched: Watched | None, placed: str, *, known: bool = False
    ) -> dict[Side, list[Any]] | None:
        """Wait for the step.

        Args:
            deadline: On the monotonic clock.
            watched: The processes of the target.
            placed: What is in place, for messages.
            known: The deaths are known from an earlier step, and are not logged again.

        Returns:
            Each side's results in rank order; None if a rank has not done it, which the log names.

        Raises:
            WeightSyncError: If a rank raised, or a rank of the target is stopped or late.
        """
        pending = self._pending
        target = [one for side, one in pending.items() if side == "target"]
        source = [one for side, one in pending.items() if side == "source"]
        silent = _wait(target, deadline, watched)
        if not silent and any(one.failed() for one in target):
            only_deaths = all(cause.level == DEATH for cause in gather_causes(target, late_too=False))
            _wait(target, deadline if only_deaths else time.monotonic() + GRACE_SECONDS, None, all_of_them=True)
        wait_soon(pending.values())
        causes = self._causes + gather_causes(target, late_too=not silent)
        causes += gather_causes(source, late_too=False)
        failures = [cause for cause in causes if cause.level in (OWN_ERROR, LATE)]
        if silent or failures:
            head = f"the weight sync failed at its step {self._name!r}, and {placed}"
            raise first_cause(head, failures, _silence(silent, watched))
        for cause in [] if known else causes:
            _log.warning("%s; at the step %r after it %s", placed, self._name, cause.text)
        waiting = [self._both_sides[side].name for side, one in pending.items() if not one.done()]
        if waiting:
            _log.warning("%s; at the step %r after it %s does not answer", placed, self._name, ", ".join(waiting))
        if causes or waiting:
            return None
        return {side: one.results(0.0) for side, one in pending.items()}


def failed_head(name: str) -> str:
    """Start of the message for a step that failed before the commit."""
    return f"the weight sync failed at its step {name!r}, and the target keeps the weights that it had"


def wait_soon(pending: Collection[Pending]) -> None:
    """Wait a short time until every call is done."""
    _wait(pending, time.monotonic() + GRACE_SECONDS, None, all_of_them=True)


def _wait(pending: Collection[Pending], deadline: float, watched: Watched | None, *, all_of_them: bool = False) -> str:
    """Wait until every call is done, one has failed, a process is silent, or the time is over."""
    monitor = (
        None
        if watched is None
        else LivenessMonitor(
            watched.session_store, watched.phase, watched.processes, watched.silence, once_begun=watched.once_begun
        )
    )
    began = time.monotonic()
    while time.monotonic() < deadline:
        done = [one.done() for one in pending]
        if all(done) or (not all_of_them and any(one.failed() for one in pending)):
            return ""
        if monitor is not None and watched is not None:
            silent = monitor.silent()
            if silent:
                return ", ".join(watched.who(process) for process in silent)
        time.sleep(min(max((time.monotonic() - began) * _NAP_SHARE, _SHORTEST_NAP), _LONGEST_NAP))
    return ""


def _silence(silent: str, watched: Watched | None) -> str:
    return f"{silent} showed no sign of life for {watched.silence:g} s" if silent and watched else ""
