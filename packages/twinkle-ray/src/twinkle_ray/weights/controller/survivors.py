"""Calls to a side that may have lost ranks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from twinkle_ray.weights.controller.causes import DEATH, causes_of, first_cause, gather_causes
from twinkle_ray.weights.controller.steps import failed_head, wait_soon
from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from twinkle_ray.weights.controller.causes import Cause
    from twinkle_ray.weights.controller.participants import Participants, Pending
    from twinkle_ray.weights.controller.steps import StepCall
    from twinkle_ray.weights.errors import WeightSyncError

_log = logging.getLogger("twinkle.ray")


def run_where_alive(name: str, participants: Participants, call: StepCall) -> None:
    """Run a function on each rank of a side that may have lost some, and wait for those that answer soon.

    A stopped rank runs it when it goes on: a worker runs its calls in order.
    """
    try:
        pending = participants.start(*call)
    except TwinkleError as error:
        _log.warning("the step %r could not start on %s: %s", name, participants.name, error)
        return
    _causes_soon(pending, participants)


def death_behind(name: str, error: WeightSyncError, participants: Participants, call: StepCall) -> WeightSyncError:
    """The death of a rank that took no part in a failed step, where it has died; else the step's error.

    Args:
        name: Of the step.
        error: Its error.
        participants: The side that took no part.
        call: A call that every living rank answers at once.
    """
    try:
        causes = _causes_soon(participants.start(*call), participants)
    except TwinkleError as failure:
        causes = causes_of(failure)
    deaths = [cause for cause in causes if cause.level == DEATH]
    if not deaths:
        return error
    death = first_cause(failed_head(name), deaths, "")
    death.__cause__ = error
    return death


def _causes_soon(pending: Pending, participants: Participants) -> list[Cause]:
    """Failures of the ranks that answer soon."""
    if participants.polled:
        wait_soon([pending])
    return gather_causes([pending], late_too=False)
