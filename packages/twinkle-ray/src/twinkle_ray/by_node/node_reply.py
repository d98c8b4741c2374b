"""Pending replies of the ranks to which one message goes."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Protocol

import ray

from twinkle_ray.by_node.messages import LostReplies
from twinkle_ray.objects.wire import outcomes_from_wire
from twinkle_ray.replies.reply import named
from twinkle_remote.backends.support import paused_for
from twinkle_remote.protocol import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_ray.by_node.messages import NodeOutcomes
    from twinkle_ray.replies.reply import ReplyGroup
    from twinkle_ray.workers.loop_sender import LoopCall
    from twinkle_remote.protocol import Task

_log = logging.getLogger("twinkle.ray")


class AgentRoutes(Protocol):
    """The sender of a message, as a reply needs it."""

    def nodes_to(self, rank: int) -> Sequence[str]:
        """Ray's ids of the nodes on the way to a rank."""

    def message_lost(self, root: int, number: int, error: Exception) -> None:
        """Take that a message was not answered.

        Args:
            root: Index of the node to which it was sent.
            number: Its number.
            error: The error of Ray.
        """

    def agent_lost(self, node: int, error: Exception) -> None:
        """Take that an agent does not answer."""

    def node_lost(self, node: str) -> None:
        """Take that a node is lost, by Ray's id."""

    def lost_by_agent(self, reply: NodeReply, node: int, error: Exception) -> Outcome:
        """The outcome of a rank whose answer an agent cannot bring.

        Args:
            reply: The reply.
            node: Index of the agent's node.
            error: The error of Ray.
        """


class NodeReply:
    """The pending reply of one rank.

    Args:
        rank: The rank.
        sent: Bytes that were sent for it.
        source: The reply of the agent that brings it, with those of others.
    """

    __slots__ = ("__weakref__", "outcome", "rank", "sent", "source")

    def __init__(self, rank: int, sent: int, source: AgentReply) -> None:
        self.rank = rank
        self.sent = sent
        self.source = source
        self.outcome: Outcome | None = None

    @property
    def instance(self) -> str:
        """Id of the component that was called."""
        return self.source.task.instance

    @property
    def name(self) -> str:
        """Class.method that was called."""
        return self.source.task.name

    @property
    def died_in(self) -> str | None:
        """The method during which the rank was lost before the call; None if it was not."""
        return self.source.deaths.get(self.rank)

    @property
    def nodes(self) -> Sequence[str]:
        """Ray's ids of the nodes without which it cannot arrive."""
        return self.source.routes.nodes_to(self.rank)

    @property
    def on_loop(self) -> LoopCall | None:
        """The task of the event loop; None for any other."""
        return self.source.loop_call(self.rank)

    def lose(self, error: Exception, node: str) -> None:
        """Take that the answer cannot arrive.

        Args:
            error: An error of Ray.
            node: Ray's id of the lost node.
        """
        self.source.routes.node_lost(node)
        if self.outcome is None:
            self.outcome = self.source.group.lost(self, error)

    def done(self) -> bool:
        """Whether the outcome is there, or the answer is lost."""
        return self.outcome is not None or self.source.has(self.rank)

    def read(self) -> Outcome:
        """Wait for the outcome."""
        while self.outcome is None:
            self.source.read()
        return self.outcome


class AgentReply:
    """The pending reply of one agent, for its node and the nodes below; it comes in one part, or in several.

    Args:
        routes: The sender.
        group: The called group.
        task: One of the tasks of the call.
        sent_to: Index of the node to which the message was sent, and its number.
        loop_calls: The tasks of event loops by rank; None for other tasks.

    Attributes:
        first: The first part; each part names the next.
        ref: The part that is awaited, or the last one.
        deaths: For each rank that was lost before the call, the method during which it was lost.
    """

    def __init__(
        self,
        routes: AgentRoutes,
        group: ReplyGroup,
        task: Task,
        sent_to: tuple[int, int],
        first: ray.ObjectRef[NodeOutcomes],
        loop_calls: Callable[[int], LoopCall] | None = None,
    ) -> None:
        self.routes, self.group, self.task = routes, group, task
        self.first = self.ref = first
        self.deaths: Mapping[int, str] = dict(group.deaths) if group.deaths else {}
        self.pending: dict[int, NodeReply] = {}
        self._sent_to = sent_to
        self._loop_calls = loop_calls
        self._lock = threading.Lock()
        self._settling = threading.RLock()
        self._lost: list[LostReplies] = []
        self._watchers: dict[int, list[Callable[[], None]]] = {}
        self._follows = False

    def loop_call(self, rank: int) -> LoopCall | None:
        """The task of the event loop of a rank; None for any other."""
        return None if self._loop_calls is None else self._loop_calls(rank)

    def has(self, rank: int) -> bool:
        """Whether the answer of a rank is there, or lost; never waits."""
        while rank in self.pending:
            ref = self.ref
            if not ray.wait([ref], timeout=0)[0]:
                return False
            try:
                self._take(ref, ray.get(ref))
            except ray.exceptions.RayError:
                return True
        return True

    def read(self) -> None:
        """Wait for the next part."""
        ref = self.ref
        if self.pending:
            try:
                self._take(ref, ray.get(ref))
            except ray.exceptions.RayError as error:
                self._fail(ref, error)
        self.settle()

    def take_part(self, ref: ray.ObjectRef[NodeOutcomes], part: NodeOutcomes) -> None:
        """Take a part of the answer; a second time it does nothing.

        Args:
            ref: The ref of the part.
            part: The part.
        """
        self._take(ref, part)
        self.settle()

    def _take(self, ref: ray.ObjectRef[NodeOutcomes], part: NodeOutcomes) -> None:
        with self._lock, paused_for(len(part.ranks)):
            if ref is not self.ref or not self.pending:
                return
            for wire in part.outcomes:
                self._arrive(outcomes_from_wire(wire))
            self._arrive([Outcome(*parts) for parts in part.stored])
            self._lost += part.lost
            if part.rest is not None:
                self.ref = part.rest
            notified = (
                [notify for rank in part.ranks for notify in self._watchers.pop(rank, ())] if self._watchers else ()
            )
        for notify in notified:
            notify()

    def _arrive(self, outcomes: Sequence[Outcome]) -> None:
        pending, name = self.pending, self.task.name
        for outcome in outcomes:
            reply = pending.pop(outcome.rank, None)
            if reply is not None and reply.outcome is None:
                reply.outcome = outcome if outcome.failure is None else named(outcome, name)
                if outcome.rank in self.deaths:  # it is there again: its node's link was down
                    self.group.deaths.pop(outcome.rank, None)

    def _fail(self, ref: ray.ObjectRef[NodeOutcomes], error: Exception) -> None:
        """The agent does not answer."""
        with self._lock:
            if ref is not self.ref or not self.pending:
                return
            self._lost.append(LostReplies(tuple(self.pending), error, self._sent_to[0]))
            notified = [notify for watchers in self._watchers.values() for notify in watchers]
            self._watchers.clear()
        self.routes.message_lost(*self._sent_to, error)
        for notify in notified:
            notify()

    def settle(self) -> None:
        """Make failures of the answers that are lost; this may ask other processes."""
        if not self._lost:
            return
        with self._settling:
            with self._lock:
                lost, self._lost = self._lost, []
            for one in lost:
                if one.agent is not None:
                    self.routes.agent_lost(one.agent, one.error)
                for rank in one.ranks:
                    reply = self.pending.get(rank)
                    if reply is not None and reply.outcome is None:
                        reply.outcome = (
                            self.group.lost(reply, one.error)
                            if one.agent is None
                            else self.routes.lost_by_agent(reply, one.agent, one.error)
                        )
                    self.pending.pop(rank, None)

    def when_done(self, reply: NodeReply, notify: Callable[[], None]) -> None:
        """Call a function when a reply is done, in any thread; at once if it is done."""
        with self._lock:
            waits = reply.outcome is None and not any(reply.rank in lost.ranks for lost in self._lost)
            follow = waits and not self._follows
            if waits:
                self._watchers.setdefault(reply.rank, []).append(notify)
                self._follows = True
        if not waits:
            notify()
        elif follow:
            self._follow()

    def _follow(self) -> None:
        ref = self.ref

        def arrived(future: Any) -> None:
            try:
                self._take(ref, future.result())
            except Exception as error:
                try:
                    self._fail(ref, error)
                except Exception:  # nobody waits for this callback
                    _log.exception(
                        "the loss of the replies of node %d was not reported to who waits for them", self._sent_to[0]
                    )
            with self._lock:
                self._follows = bool(self._watchers)
                again = self._follows
            if again:
                self._follow()

        ref.future().add_done_callback(arrived)
