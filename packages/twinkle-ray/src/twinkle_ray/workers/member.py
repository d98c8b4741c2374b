"""One worker of a group, as other processes reach it: its actor, its stack, and whether it answers.

Short: what a worker answers at any time, while a method of its runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.nodes import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol import WorkerInfo

_ANSWER_SECONDS = 2.0  # in which a worker says where it is
_ALIVE_SECONDS = 15.0  # in which a living worker answers, also where the question or its answer was lost
_SILENT_SECONDS = 10.0  # that a worker's node which did not answer is not asked again
_silent_since: dict[str, float] = {}


@dataclass(slots=True, eq=False)
class Member:
    """One worker of a group.

    Attributes:
        actor: Its actor; None after the session.
        id: Ray's id of its actor.
        info: Its group, rank and node.
        node: Ray's id of its node.
        memory: Its `host_identity`, by which others know whether they can share memory with it.
    """

    actor: Any
    id: str
    info: WorkerInfo
    node: str
    memory: str


def answers_of(refs: Sequence[ray.ObjectRef[Any]], seconds: float = _ANSWER_SECONDS) -> list[Any]:
    """The answers of workers that come within seconds; None for the others."""
    done = set(ray.wait(list(refs), num_returns=len(refs), timeout=seconds)[0])
    return [_value(ref) if ref in done else None for ref in refs]


def _value(ref: ray.ObjectRef[Any]) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayError:
        return None


def lives(member: Member) -> bool:
    """Whether a worker answers; False where its node did not answer before."""
    if time.monotonic() - _silent_since.get(member.node, -_SILENT_SECONDS) < _SILENT_SECONDS:
        return False
    (found,) = answers_of([member.actor.alive.options(max_task_retries=ATTEMPTS).remote()], _ALIVE_SECONDS)
    if found is None:
        _silent_since[member.node] = time.monotonic()
    return found is not None
