"""One worker of a group, as other processes reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinkle_remote.protocol import WorkerInfo


@dataclass(frozen=True, slots=True)
class Member:
    """One worker of a group.

    Attributes:
        actor: Its actor.
        info: Its group, rank and node.
        node: Ray's id of its node.
        stack: Descriptor of its stack, for `stack_dump.read_stack`.
        alive: A ref that is an error as soon as it has ended.
    """

    actor: Any
    info: WorkerInfo
    node: str
    stack: int
    alive: Any
