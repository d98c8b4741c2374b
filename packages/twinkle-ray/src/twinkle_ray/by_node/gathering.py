"""The answers of one call that arrive at an agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import ray

from twinkle_ray.by_node.messages import LostReplies, NodeOutcomes
from twinkle_ray.objects.wire import outcome_from_wire, outcomes_to_wire

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from twinkle_ray.replies.loop_replies import OutcomeWire
    from twinkle_remote.protocol import Outcome

_TOGETHER_SECONDS = 0.01  # that an answer waits for others, unless it is a failure


class Gathering:
    """Answers of ranks; it gives them on together, but a failure, and the last one, at once.

    Args:
        key: Id of the call.
        ranks: Number of ranks that answer.
    """

    def __init__(self, key: str, ranks: int) -> None:
        self.key = key
        self._missing = ranks
        self._outcomes: list[Outcome] = []
        self._below: list[bytes] = []
        self._stored: list[tuple[Any, ...]] = []
        self._lost: list[LostReplies] = []
        self._fresh: list[int] = []
        self._failed = False
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._readers: set[asyncio.Task[None]] = set()

    @property
    def complete(self) -> bool:
        """Whether every rank has answered, or is lost."""
        return self._missing == 0

    def read(self, reader: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that reads an answer for this call."""
        task = asyncio.ensure_future(reader)
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)

    async def from_rank(self, rank: int, ref: ray.ObjectRef[OutcomeWire]) -> None:
        """Take the answer of a rank."""
        try:
            self.take(rank, await ref)
        except ray.exceptions.RayError as error:
            self.lose(LostReplies((rank,), error))

    def take(self, rank: int, wire: OutcomeWire) -> None:
        """Take the answer of a rank that has arrived."""
        if isinstance(wire, bytes):
            outcome = outcome_from_wire(wire)
            self._outcomes.append(outcome)
            self._failed = self._failed or outcome.failure is not None
        else:
            self._stored.append(wire)
        self._arrived((rank,))

    def lose(self, lost: LostReplies) -> None:
        """Take that answers cannot arrive."""
        self._lost.append(lost)
        self._failed = True
        self._arrived(lost.ranks)

    async def from_agent(self, node: int, ranks: set[int], ref: ray.ObjectRef[NodeOutcomes]) -> bool:
        """Take the answers of an agent below; returns whether all have come.

        Args:
            node: Index of its node.
            ranks: The ranks for which it answers.
            ref: Its first answer.
        """
        left, rest = set(ranks), ref
        while left:
            try:
                answer = await rest
            except ray.exceptions.RayError as error:
                self.lose(LostReplies(tuple(sorted(left)), error, node))
                return False
            left.difference_update(answer.ranks)
            self._below += answer.outcomes
            self._stored += answer.stored
            self._lost += answer.lost
            self._failed = self._failed or answer.failed
            self._arrived(answer.ranks)
            if answer.rest is None:
                break
            rest = answer.rest
        return True

    def _arrived(self, ranks: Sequence[int]) -> None:
        self._fresh += ranks
        self._missing -= len(ranks)
        if self._failed or not self._missing:
            self._due.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TOGETHER_SECONDS, self._due.set)

    async def next_outcomes(self) -> NodeOutcomes:
        """Wait for answers, and return those that were not returned before."""
        await self._due.wait()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._due.clear()
        own = [outcomes_to_wire(self._outcomes)] if self._outcomes else []
        answer = NodeOutcomes(
            tuple(self._fresh), self._failed, (*own, *self._below), tuple(self._stored), tuple(self._lost)
        )
        self._fresh, self._outcomes, self._below, self._stored, self._lost = [], [], [], [], []
        self._failed = False
        return answer
