"""The replies that a call waits for: each is of one actor, or is one of many in the reply of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from twinkle_ray.objects.wire import outcome_from_wire, outcomes_from_wire
from twinkle_ray.replies.loop_replies import lost_wire, value_or_error
from twinkle_remote.protocol import Outcome, WorkerInfo

if TYPE_CHECKING:
    from twinkle_ray.by_node.messages import NodeOutcomes


class ReplyAmong(NamedTuple):
    """The reply of a rank in the reply of a node.

    Attributes:
        first: The first part of the node's reply.
        rank: The rank.
    """

    first: ray.ObjectRef[NodeOutcomes]
    rank: int


ReplySource = ray.ObjectRef[Any] | ReplyAmong


class Origin(NamedTuple):
    """The worker whose reply is waited for.

    Attributes:
        place: Index of the reply among those that are waited for.
        info: The worker.
        method: Class.method that it was asked for.
    """

    place: int
    info: WorkerInfo
    method: str


Origins = Mapping[str, Sequence[Origin]]
"""The replies that need a node, by Ray's id of the node."""


class AwaitedReplies:
    """Reads replies; the reply of a node is read once for all of its ranks."""

    def __init__(self) -> None:
        self._nodes: dict[ray.ObjectRef[NodeOutcomes], _RepliesOfNode] = {}

    async def outcome(self, source: ReplySource) -> Outcome:
        """The outcome; a failure without a label if the reply is lost, because only the caller has labels."""
        if not isinstance(source, ReplyAmong):
            answer = await value_or_error(source)
            return _lost(answer) if isinstance(answer, Exception) else outcome_from_wire(answer)
        node = self._nodes.get(source.first)
        if node is None:
            node = self._nodes[source.first] = _RepliesOfNode(source.first)
        return await node.of(source.rank)

    def close(self) -> None:
        """Read no more."""
        for node in self._nodes.values():
            node.close()


class _RepliesOfNode:
    def __init__(self, first: ray.ObjectRef[NodeOutcomes]) -> None:
        self._found: dict[int, Outcome] = {}
        self._asked: dict[int, asyncio.Future[Outcome]] = {}
        self._end: Exception | None = None
        self._reading = asyncio.ensure_future(self._read(first))

    async def of(self, rank: int) -> Outcome:
        if rank not in self._found and self._end is None:
            return await self._asked.setdefault(rank, asyncio.get_running_loop().create_future())
        return self._outcome(rank)

    async def _read(self, first: ray.ObjectRef[NodeOutcomes]) -> None:
        rest: ray.ObjectRef[NodeOutcomes] | None = first
        while rest is not None:
            part = await value_or_error(rest)
            if isinstance(part, Exception):
                self._end = part
                break
            outcomes = [outcome for wire in part.outcomes for outcome in outcomes_from_wire(wire)]
            outcomes += [Outcome(*parts) for parts in part.stored]
            self._found.update({outcome.rank: outcome for outcome in outcomes})
            self._found.update({rank: _lost(lost.error) for lost in part.lost for rank in lost.ranks})
            self._settle()
            rest = part.rest
        self._settle()

    def _settle(self) -> None:
        for rank, asked in self._asked.items():
            if not asked.done() and (rank in self._found or self._end is not None):
                asked.set_result(self._outcome(rank))

    def _outcome(self, rank: int) -> Outcome:
        """The outcome of a rank; after the end, the failure of one that has not answered."""
        return self._found[rank] if self._end is None else self._found.get(rank, _lost(self._end))

    def close(self) -> None:
        self._reading.cancel()


def _lost(error: Exception) -> Outcome:
    return outcome_from_wire(lost_wire(error))
