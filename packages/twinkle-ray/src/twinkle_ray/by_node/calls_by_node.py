"""Sends the calls of this process by node: to the agents of nodes, and straight to ranks whose agent is lost."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.by_node.call_agent import RankHandle
from twinkle_ray.by_node.messages import NodeMessage, NodeTasks, loop_key
from twinkle_ray.by_node.node_reply import AgentReply, NodeReply
from twinkle_ray.workers.loop_sender import LoopCall
from twinkle_ray.workers.lost import reason
from twinkle_ray.workers.processes import Process, is_known_to_live
from twinkle_remote.protocol import Failure, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.by_node.agent_tree import AgentPlace, AgentTree
    from twinkle_ray.replies.reply import ReplyGroup
    from twinkle_remote.protocol import Task

_Refs = tuple[ray.ObjectRef[Any], ...]


class CallsByNode:
    """Sends the calls of one group.

    Args:
        group: The group.
        tree: The agents.
        places: The place of the agent of each rank.
    """

    def __init__(self, group: ReplyGroup, tree: AgentTree, places: Sequence[AgentPlace]) -> None:
        self._group, self._tree = group, tree
        self._caller = f"{os.getpid():x}-{os.urandom(6).hex()}"
        self._numbers = count()
        self._generations: dict[int, int] = {}
        self._node_of: list[int | None] = list(map(tree.index, places))
        self._all_known = None not in self._node_of

    def ranks_taken(self, ranks: Sequence[int], restarted: bool = False) -> dict[int, Any]:
        """Make ranks known to their agents; returns the answers of the agents by index.

        Args:
            ranks: The ranks.
            restarted: They have other workers than before.
        """
        by_node: dict[int, dict[int, RankHandle]] = {}
        for rank in ranks:
            if restarted:
                self._generations[rank] = self._generations.get(rank, 0) + 1
            member = self._group.members[rank]
            node = self._node_of[rank]
            if node is not None:
                worker = f"{self._caller}-{rank}.{self._generations.get(rank, 0)}"
                by_node.setdefault(node, {})[rank] = RankHandle(member.actor, member.alive, worker)
        group = self._group.name
        return {node: self._tree.agents[node].take_ranks.remote(group, handles) for node, handles in by_node.items()}

    @property
    def reaches_all(self) -> bool:
        """Whether `reaches` is true for every rank."""
        return self._tree.whole and self._all_known

    def reaches(self, rank: int) -> bool:
        """Whether a rank has an agent, and every agent on the way to it is there."""
        node = self._node_of[rank]
        return node is not None and not self._tree.is_cut(node)

    def send(
        self,
        ranks: Sequence[int],
        of_rank: Sequence[int],
        tasks: Sequence[Task],
        wires: Mapping[int, tuple[Any, int]],
        inputs: Mapping[int, _Refs],
    ) -> list[NodeReply]:
        """Send a call to ranks that `reaches` has confirmed; returns their replies.

        Args:
            ranks: The ranks.
            of_rank: For each of them the index of its task.
            tasks: The distinct tasks of the call.
            wires: The wire form of each task, and its size in bytes, by its index.
            inputs: What each task waits for, by its index; empty without lazy arguments.
        """
        by_node: dict[Any, tuple[list[int], list[int]]] = {}
        node_of = self._node_of
        for rank, index in zip(ranks, of_rank, strict=True):
            there = by_node.get(node_of[rank])
            if there is None:
                there = by_node[node_of[rank]] = [], []
            there[0].append(rank)
            there[1].append(index)
        by_root: dict[int, list[NodeTasks]] = {}
        sizes: dict[int, int] = {}
        for node, (here, indices) in by_node.items():
            root = self._tree.root(node)
            tasks_here = _node_tasks(node, here, indices, wires, inputs)
            by_root.setdefault(root, []).append(tasks_here)
            sizes[node] = sum([wires[index][1] for index in set(indices)])
        key = f"{self._caller}-{next(self._numbers)}"
        sent: dict[int, NodeReply] = {}
        for root, nodes in by_root.items():
            self._send_to(root, key, nodes, tasks[0], sizes, sent)
        return [sent[rank] for rank in ranks]

    def _send_to(
        self,
        root: int,
        key: str,
        nodes: Sequence[NodeTasks],
        task: Task,
        sizes: Mapping[int, int],
        sent: dict[int, NodeReply],
    ) -> None:
        number, ref = self._tree.send(root, NodeMessage(key, self._group.name, task.on_loop, tuple(nodes)))
        members = self._group.members

        def loop_call(rank: int) -> LoopCall:
            return LoopCall(members[rank], loop_key(key, rank), ref, ())

        answer = AgentReply(self, self._group, task, (root, number), ref, loop_call if task.on_loop else None)
        pending = answer.pending
        for there in nodes:
            size = sizes[there.node]
            for rank in there.ranks:
                sent[rank] = pending[rank] = NodeReply(rank, size, answer)
                size = 0

    def nodes_to(self, rank: int) -> Sequence[str]:
        """Ray's ids of the nodes on the way to a rank."""
        node = self._node_of[rank]
        return (self._group.members[rank].node,) if node is None else self._tree.nodes_to(node)

    def message_lost(self, root: int, number: int, error: Exception) -> None:
        """Take that a message was not answered."""
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            self._tree.skip(root, number)

    def agent_lost(self, node: int, error: Exception) -> None:
        """Take that an agent does not answer; from now on the ranks behind it are asked without it."""
        if not isinstance(error, ray.exceptions.ActorUnavailableError | ray.exceptions.RayTaskError):
            self._tree.lose(node)

    def node_lost(self, node: str) -> None:
        """Take that a node is lost, by Ray's id; from now on the ranks behind it are asked without its agent."""
        self._tree.lose_node(node)

    def lost_by_agent(self, reply: NodeReply, node: int, error: Exception) -> Outcome:
        """The outcome of a rank whose answer an agent cannot bring."""
        member, agents = self._group.members[reply.rank], self._group.agents
        lives = is_known_to_live(Process(member.node, member.info.pid, member.stack), agents)
        which = "the agent of its node" if self._node_of[reply.rank] == node else "an agent on the way to its node"
        also = "" if lives else "its process is not there either, or its node does not answer; "
        message = f"{which}, which hands it the call, does not answer: {reason(error)}; {also}"
        failure = Failure(
            label=self._group.label(reply),
            node=f"{member.info.node} pid {member.info.pid}",
            type_name=type(error).__name__,
            message=f"{message}the call may or may not have run",
            method=reply.name,
            died=not lives,
            unanswered=lives,
        )
        return Outcome(reply.rank, failure=failure)


def _node_tasks(
    node: int,
    ranks: Sequence[int],
    indices: Sequence[int],
    wires: Mapping[int, tuple[Any, int]],
    inputs: Mapping[int, _Refs],
) -> NodeTasks:
    """The tasks of one node, in which each distinct task is once."""
    first = indices[0]
    if indices.count(first) == len(indices):
        return NodeTasks(node, tuple(ranks), (wires[first][0],), (), (inputs[first],) if inputs else ())
    place = {index: position for position, index in enumerate(dict.fromkeys(indices))}
    return NodeTasks(
        node,
        tuple(ranks),
        tuple([wires[index][0] for index in place]),
        tuple([place[index] for index in indices]),
        tuple([inputs[index] for index in place]) if inputs else (),
    )
