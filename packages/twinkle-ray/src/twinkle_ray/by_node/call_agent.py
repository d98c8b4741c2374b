"""The agent of a node for calls: it hands the tasks of a message to the node's ranks, and answers for all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from twinkle_ray.by_node.gathering import Gathering
from twinkle_ray.by_node.message_order import MessageOrder
from twinkle_ray.by_node.messages import LostReplies, loop_key
from twinkle_ray.by_node.tree import children, next_hop
from twinkle_ray.cluster.node_actors import options_on
from twinkle_ray.cluster.remote_once import remote_once
from twinkle_ray.replies.loop_replies import LoopReplies

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from twinkle_ray.by_node.messages import NodeMessage, NodeOutcomes, NodeTasks

_AT_ONCE = 100_000  # calls; each is a few futures, and no thread


class RankHandle(NamedTuple):
    """A rank, as its agent reaches it.

    Attributes:
        actor: Its actor.
        alive: A ref that is an error as soon as it has ended.
        worker: Id of this worker; another worker of the same rank has another one.
    """

    actor: Any
    alive: ray.ObjectRef[Any]
    worker: str


class CallAgent(LoopReplies):
    """Hands out the calls of one process.

    Args:
        node: Index of its node in the tree.
        fan_out: As in `tree`.
    """

    def __init__(self, node: int, fan_out: int) -> None:
        super().__init__()
        self._node, self._fan_out = node, fan_out
        self._below: Mapping[int, Any] = {}
        self._sent: dict[int, int] = {}
        self._ranks: dict[str, dict[int, RankHandle]] = {}
        self._met: set[str] = set()
        self._watching: list[asyncio.Task[None]] = []
        self._order = MessageOrder()
        self._gatherings: dict[str, Gathering] = {}
        self._me = ray.get_runtime_context().current_actor

    async def connect(self, below: Mapping[int, Any]) -> None:
        """Take the agents directly below, by the indices of their nodes."""
        self._below = below

    async def take_ranks(self, group: str, ranks: Mapping[int, RankHandle]) -> None:
        """Take ranks of this node, which may have had other workers before."""
        self._ranks.setdefault(group, {}).update(ranks)

    async def run(self, number: int, message: NodeMessage) -> NodeOutcomes:
        """Hand out the tasks of a call in its turn, and return its first answers.

        Args:
            number: Number of the message among those of its sender.
            message: The call.
        """
        await self._order.wait(number)
        try:
            gathering = self._hand_out(message)
        finally:
            self._order.done(number)
        return await self._next_outcomes(gathering)

    async def skip(self, number: int) -> None:
        """Do not wait for a message, which was lost."""
        self._order.skip(number)

    async def rest(self, key: str) -> NodeOutcomes:
        """The next answers of a call."""
        return await self._next_outcomes(self._gatherings[key])

    async def _next_outcomes(self, gathering: Gathering) -> NodeOutcomes:
        answer = await gathering.next_outcomes()
        if gathering.complete:
            self._gatherings.pop(gathering.key, None)
            return answer
        self._gatherings[gathering.key] = gathering
        return answer._replace(rest=self._me.rest.remote(gathering.key))

    def _hand_out(self, message: NodeMessage) -> Gathering:
        gathering = Gathering(message.key, sum([len(tasks.ranks) for tasks in message.nodes]))
        below: dict[int, list[NodeTasks]] = {}
        for tasks in message.nodes:
            if tasks.node == self._node:
                self._to_ranks(message, tasks, gathering)
            else:
                below.setdefault(next_hop(self._node, tasks.node, self._fan_out), []).append(tasks)
        for node, nodes in below.items():
            number = self._sent[node] = self._sent.get(node, -1) + 1
            ref = self._below[node].run.remote(number, message._replace(nodes=tuple(nodes)))
            ranks = {rank for tasks in nodes for rank in tasks.ranks}
            gathering.read(self._from_below(gathering, node, number, ranks, ref))
        return gathering

    async def _from_below(
        self, gathering: Gathering, node: int, number: int, ranks: set[int], ref: ray.ObjectRef[NodeOutcomes]
    ) -> None:
        if not await gathering.from_agent(node, ranks, ref):
            self._below[node].skip.remote(number)

    def _to_ranks(self, message: NodeMessage, tasks: NodeTasks, gathering: Gathering) -> None:
        ranks = self._ranks[message.group]
        of_rank: Sequence[int] = tasks.of_rank or (0,) * len(tasks.ranks)
        for rank, index in zip(tasks.ranks, of_rank, strict=True):
            inputs = tasks.inputs[index] if tasks.inputs else ()
            try:
                if message.on_loop:
                    self._start_on_loop(message.key, ranks[rank], rank, tasks.wires[index], inputs, gathering)
                    continue
                run = ranks[rank].actor.run_with_inputs if inputs else ranks[rank].actor.run
                gathering.read(gathering.from_rank(rank, run.remote(tasks.wires[index], *inputs)))
            except ray.exceptions.RayError as error:
                gathering.lose(LostReplies((rank,), error))

    def _start_on_loop(
        self, call: str, to: RankHandle, rank: int, wire: Any, inputs: Sequence[Any], gathering: Gathering
    ) -> None:
        caller = f"agent-{self._me._actor_id.hex()}"
        if to.worker not in self._met:
            self._met.add(to.worker)
            to.actor.meet.remote(caller, self._me)
            self._watching.append(asyncio.ensure_future(self.watch(to.worker, [to.alive])))
        key = loop_key(call, rank)
        started = to.actor.start_on_loop.remote(wire, caller, key, *inputs)
        gathering.read(self._from_loop(gathering, key, to, rank, [started] if inputs else []))

    async def _from_loop(
        self, gathering: Gathering, key: str, to: RankHandle, rank: int, started: Sequence[Any]
    ) -> None:
        """Take the answer that a rank delivers."""
        answer = await self.reply_or_loss(key, to.worker, started)
        if isinstance(answer, ray.exceptions.RayError):
            gathering.lose(LostReplies((rank,), answer))
        else:
            gathering.take(rank, answer)


def start_call_agents(nodes: Sequence[str], fan_out: int, first: int = 0) -> list[Any]:
    """An agent on each node, in the order of the nodes; `connect_call_agents` makes those below known to it.

    Args:
        nodes: Ray's ids of the nodes.
        fan_out: As in `tree`.
        first: Index of the first of them in the tree.
    """
    agents = []
    for index, node in enumerate(nodes, first):
        actor_class = remote_once(CallAgent).options(max_concurrency=_AT_ONCE, **options_on(node))
        agents.append(actor_class.remote(index, fan_out))
    return agents


def connect_call_agents(agents: Sequence[Any], fan_out: int, which: Iterable[int]) -> dict[int, Any]:
    """Make those below known to agents; returns the answers of those with some below, by index.

    Args:
        agents: All agents of the tree.
        fan_out: As in `tree`.
        which: Indices of the agents that are connected.
    """
    below = {at: {node: agents[node] for node in children(at, len(agents), fan_out)} for at in which}
    return {at: agents[at].connect.remote(known) for at, known in below.items() if known}
