"""The constructors of a group's components, run again on new workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from twinkle_remote.backends.support import driver_line, raise_failures
from twinkle_remote.errors import CallTimeoutError
from twinkle_remote.protocol import InputReplies, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_ray.workers.group import RayGroup
    from twinkle_ray.workers.groups import RayGroups
    from twinkle_remote.protocol import Reply


def catch_up(
    groups: RayGroups,
    group: RayGroup,
    created: Mapping[str, Mapping[int, tuple[Task, InputReplies]]],
    timeout: float,
) -> None:
    """Run the constructors again in their order; call `restore` after each one whose class has it.

    Args:
        groups: The backend.
        group: The new workers.
        created: The tasks that constructed components, by instance, then by rank.
        timeout: Seconds that one constructor, or one `restore`, may take.
    """
    for by_rank in created.values():
        first = next(iter(by_rank.values()))[0]
        _together(groups, group, first.name, by_rank, timeout)
        if callable(getattr(first.target, "restore", None)):
            name = f"{first.target.__name__}.restore"
            task = Task("method", first.instance, name, "restore")
            _together(groups, group, name, dict.fromkeys(by_rank, (task, InputReplies())), timeout)


def _together(
    groups: RayGroups,
    group: RayGroup,
    name: str,
    tasks: Mapping[int, tuple[Task, InputReplies]],
    timeout: float,
) -> None:
    pending: list[Reply] = [group.submit(rank, task, inputs) for rank, (task, inputs) in tasks.items()]
    until = time.monotonic() + timeout
    failures = []
    while pending:
        done = groups.wait(pending, max(0.0, until - time.monotonic()))
        if not done:
            late = [reply.rank for reply in pending]
            raise CallTimeoutError(f"{name} on {group.name} is not done after {timeout:g} s on ranks {late}", (), late)
        outcomes = [groups.outcome(reply) for reply in done]
        failures += [outcome.failure for outcome in outcomes if outcome.failure is not None]
        pending = [reply for reply in pending if reply not in done]
    if failures:
        raise_failures(name, group.name, failures, driver_line())
