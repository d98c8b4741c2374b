"""One worker of a group, as other processes reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from twinkle_remote.errors import NotInitializedError

if TYPE_CHECKING:
    from twinkle_remote.protocol import WorkerInfo


class LeftActor:
    """Stands for an actor that has ended with its session, whose handle was let go."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotInitializedError("the session of this worker has ended: initialize() starts another one")

    def __getitem__(self, index: int) -> NoReturn:
        self.__getattr__("run")


@dataclass(slots=True, eq=False)
class Member:
    """One worker of a group.

    Attributes:
        actor: Its actor, until `leave`.
        id: Ray's id of its actor.
        info: Its group, rank and node.
        node: Ray's id of its node.
        stack: Descriptor of its stack, for `stack_dump.read_stack`.
        alive: A ref that is an error as soon as it has ended.
    """

    actor: Any
    id: str
    info: WorkerInfo
    node: str
    stack: int
    alive: Any

    def leave(self) -> None:
        """Let go of its actor, which has ended: for each handle that lives, Ray keeps a connection to this process."""
        self.actor = LeftActor()
