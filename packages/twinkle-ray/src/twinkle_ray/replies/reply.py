"""The pending answer of one actor that was asked directly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import ray

from twinkle_ray.objects.wire import UNREAD, outcome_from_wire
from twinkle_ray.replies.loop_replies import LOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.workers.loop_sender import LoopCall
    from twinkle_ray.workers.member import Member
    from twinkle_remote.protocol import Outcome, Task


class LostReply(Protocol):
    """A reply that is lost.

    Attributes:
        rank: The rank that was asked.
    """

    rank: int

    @property
    def instance(self) -> str:
        """Id of the component that was called."""

    @property
    def name(self) -> str:
        """Class.method that was called."""

    @property
    def died_in(self) -> str | None:
        """The method during which the rank was lost before the call; None if it was not."""


class ReplyGroup(Protocol):
    """The group of a reply, as the reply and the sender of its call need it.

    Attributes:
        members: The workers in rank order.
        deaths: For each lost rank, the method during which it was lost.
        agents: The nodes' agents by node id.
        name: Name of the group.
    """

    name: str
    members: tuple[Member, ...]
    deaths: dict[int, str]
    agents: Mapping[str, Any]

    def label(self, reply: LostReply) -> str:
        """The short name of the rank of a reply, with its coordinate."""

    def lost(self, reply: LostReply, error: Exception) -> Outcome:
        """The outcome of a rank for which Ray raised an error."""

    def confirm(self, rank: int, wire: bytes, count: int) -> None:
        """The actor has answered a task that it caches."""


class RayReply:
    """The pending reply of one actor.

    Args:
        group: Its group.
        rank: Its rank.
        ref: The answer.
        task: The task that the actor runs.
        sent: Bytes that were sent to the actor.
        cache_as: The task that the actor caches, and the number of this request among those that cache.
        on_loop: The task of the event loop; None for any other.
    """

    __slots__ = (
        "__weakref__",
        "_cache_as",
        "died_in",
        "group",
        "instance",
        "name",
        "on_loop",
        "outcome",
        "rank",
        "ref",
        "sent",
    )

    def __init__(
        self,
        group: ReplyGroup,
        rank: int,
        ref: ray.ObjectRef[Any],
        task: Task,
        sent: int,
        cache_as: tuple[bytes, int] | None = None,
        on_loop: LoopCall | None = None,
    ) -> None:
        self.group = group
        self.rank = rank
        self.ref = ref
        self.sent = sent
        self.instance = task.instance
        self.name = task.name
        self.died_in = group.deaths.get(rank)
        self.outcome: Outcome | None = None
        self.on_loop = on_loop
        self._cache_as = cache_as

    @property
    def source(self) -> RayReply:
        """The reply that is waited for: itself."""
        return self

    @property
    def nodes(self) -> Sequence[str]:
        """Ray's ids of the nodes without which it cannot arrive."""
        return (self.group.members[self.rank].node,)

    def lose(self, error: Exception, node: str) -> None:
        """Take that the answer cannot arrive.

        Args:
            error: An error of Ray.
            node: Ray's id of the lost node.
        """
        if self.outcome is None:
            self.outcome = self.group.lost(self, error)

    def done(self) -> bool:
        """Whether the outcome is there, or the answer is lost."""
        return self.outcome is not None or bool(ray.wait([self.ref], timeout=0)[0])

    def read(self) -> Outcome:
        """Wait for the outcome."""
        if self.outcome is None:
            try:
                self.take_part(self.ref, ray.get(self.ref))
            except ray.exceptions.RayError as error:
                self.outcome = self.group.lost(self, error)
        assert self.outcome is not None
        return self.outcome

    def take_part(self, ref: ray.ObjectRef[Any], wire: bytes | tuple[Any, ...]) -> None:
        """Take the answer of the actor, which comes in one part.

        Args:
            ref: Its ref.
            wire: The answer.
        """
        if self.outcome is None:
            self.outcome = named(outcome_from_wire(wire), self.name)
            loss = self.on_loop.loss() if self.on_loop is not None and self.outcome.rank == LOST else None
            if loss is not None:
                self.outcome = self.group.lost(self, loss)
            elif self.died_in is not None and self.outcome.rank != LOST:  # it is there again: its node's link was down
                self.group.deaths.pop(self.rank, None)
            if self._cache_as is not None:
                self.group.confirm(self.rank, *self._cache_as)


def named(outcome: Outcome, name: str) -> Outcome:
    """An outcome whose failure names its method, which a worker that could not read the task does not know.

    Args:
        outcome: The outcome.
        name: Class.method that was asked for.
    """
    if outcome.failure is not None and outcome.failure.method == UNREAD:
        message = f"its arguments were not read: {outcome.failure.message}"
        outcome.failure = replace(outcome.failure, method=name, message=message)
    return outcome
