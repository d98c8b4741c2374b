"""The constructors of a group's components, run again on new workers.

Short: only restarts use it.
"""

from __future__ import annotations

from concurrent.futures import wait
from typing import TYPE_CHECKING

from twinkle_remote.backends.support import driver_line, raise_failures
from twinkle_remote.errors import CallTimeoutError
from twinkle_remote.protocol import InputReplies, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_ray.workers.group import RayGroup


def catch_up(
    group: RayGroup,
    created: Mapping[str, Mapping[int, tuple[Task, InputReplies]]],
    timeout: float,
) -> None:
    """Run the constructors again in their order; call `restore` after each one whose class has it.

    Args:
        group: The new workers.
        created: The tasks that constructed components, by instance, then by rank.
        timeout: Seconds that one constructor, or one `restore`, may take.
    """
    for by_rank in created.values():
        first = next(iter(by_rank.values()))[0]
        _together(group, first.name, by_rank, timeout)
        if callable(getattr(first.target, "restore", None)):
            name = f"{first.target.__name__}.restore"
            task = Task("method", first.instance, name, "restore")
            _together(group, name, dict.fromkeys(by_rank, (task, InputReplies())), timeout)


def _together(group: RayGroup, name: str, tasks: Mapping[int, tuple[Task, InputReplies]], timeout: float) -> None:
    pending = {rank: group.submit([rank], [task], [0], inputs)[0] for rank, (task, inputs) in tasks.items()}
    wait(pending.values(), timeout)
    if late := [rank for rank, reply in pending.items() if not reply.done()]:
        raise CallTimeoutError(f"{name} on {group.name} is not done after {timeout:g} s on ranks {late}", (), late)
    failures = [failure for reply in pending.values() if (failure := reply.result().failure) is not None]
    if failures:
        raise_failures(name, group.name, failures, driver_line())
