"""A group of workers: it submits tasks to its actors and reads their outcomes."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.by_node.node_reply import NodeReply
from twinkle_ray.objects.wire import task_to_wire, unsendable
from twinkle_ray.replies.awaited_replies import Origin, ReplyAmong
from twinkle_ray.replies.reply import RayReply
from twinkle_ray.replies.withdrawn import withdraw
from twinkle_ray.workers.loop_sender import LoopSender
from twinkle_ray.workers.lost import to_failure
from twinkle_ray.workers.member import LeftActor
from twinkle_ray.workers.processes import Process, is_known_to_live, stacks_of
from twinkle_ray.workers.shown_waits import waits_of
from twinkle_remote.backends.support import report_start
from twinkle_remote.errors import DispatchError, TwinkleError
from twinkle_remote.protocol import Outcome, UncheckedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_ray.by_node.calls_by_node import CallsByNode
    from twinkle_ray.replies.awaited_replies import Origins, ReplySource
    from twinkle_ray.replies.reply import LostReply
    from twinkle_ray.replies.waiting_inputs import WaitingInputs
    from twinkle_ray.workers.member import Member
    from twinkle_remote.protocol import InputReplies, Reply, Task, WorkerInfo, WorkerWaits

_LARGEST_CACHED = 2048  # bytes
_REPLIES = (RayReply, NodeReply)


class RayGroup:
    """The workers of one group.

    Args:
        name: Name of the group.
        members: In rank order.
        is_driver: This is the one process that may rely on the tasks that the actors have cached.
        keeps_constructors: Keep the tasks that constructed components, and their inputs, for a restart.

    Attributes:
        name: As given.
        size: Number of workers.
        created: The tasks that constructed components, by instance, then by rank, in order.
        deaths: For each lost rank, the method during which it was lost.
        labels: Labels of the workers of all groups by actor id.
        waiting: Waits for the inputs of tasks.
        agents: The nodes' agents by node id.
        by_node: Sends calls by node; None if every rank is sent its own.
        takes_unchecked: As in `WorkerGroup`.
    """

    takes_unchecked = True

    def __init__(
        self, name: str, members: Sequence[Member], *, is_driver: bool = False, keeps_constructors: bool = False
    ) -> None:
        self.name, self.size = name, len(members)
        self._keeps_constructors = keeps_constructors
        self._lock = threading.Lock()
        self.created: dict[str, dict[int, tuple[Task, InputReplies]]] = {}
        self._is_driver = is_driver
        self._former: set[str] = set()
        self._take_members(members)
        self._cached: dict[int, bytes] = {}
        self._requests: dict[int, int] = {}
        self._meshes: dict[str, DeviceMesh | None] = {}
        self._wires: dict[int, tuple[weakref.ref[Task], Any, int]] = {}
        self.deaths: dict[int, str] = {}
        self._ended: dict[int, str] = {}
        self.labels: Mapping[str, str] = {}
        self.waiting: WaitingInputs | None = None
        self.agents: Mapping[str, Any] = {}
        self.by_node: CallsByNode | None = None
        self._sender = LoopSender([member.alive for member in self.members])

    def _take_members(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)
        # Methods of the actors, looked up once; see `RankActor` for what each is sent.
        self._run: Sequence[Any] | LeftActor = [member.actor.run for member in self.members]
        self._run_with_inputs: Sequence[Any] | LeftActor = [member.actor.run_with_inputs for member in self.members]
        self._run_and_cache: Sequence[Any] | LeftActor = [member.actor.run_and_cache for member in self.members]
        self._run_cached: Sequence[Any] | LeftActor = [member.actor.run_cached for member in self.members]

    def restart(self, members: Sequence[Member]) -> None:
        """Have other workers in the places of those of their ranks, which have ended."""
        fresh = {member.info.rank: member for member in members}
        with self._lock:
            self._former.update(self.members[rank].id for rank in fresh)
            self._take_members([fresh.get(rank, member) for rank, member in enumerate(self.members)])
            for rank, member in fresh.items():
                self._cached.pop(rank, None)
                self.deaths.pop(rank, None)
                self._ended.pop(rank, None)
                self._sender.restart(rank, member.alive)

    def leave(self) -> None:
        """Let go of the actors, which have ended: what is still held of this group keeps no handle of them."""
        for member in self.members:
            member.leave()
        self._run = self._run_with_inputs = self._run_and_cache = self._run_cached = LeftActor()

    def __reduce__(self) -> tuple[Any, ...]:
        return RayGroup, (self.name, self.members)

    def info(self, rank: int) -> WorkerInfo:
        """The group, rank and node of a worker."""
        return self.members[rank].info

    def prepare(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Pickle all tasks of one call before the first one is sent.

        Raises:
            DispatchError: One does not pickle; the message names the argument.
        """
        for task in tasks:
            self._wire(task)
        return tasks

    def submit(self, rank: int, task: Task, inputs: InputReplies) -> RayReply | NodeReply:
        """Send a task to a rank; a task that ranks share is pickled once."""
        return self.submit_all([rank], [task], [0], inputs)[0]

    def submit_all(
        self, ranks: Sequence[int], tasks: Sequence[Task], of_rank: Sequence[int], inputs: InputReplies
    ) -> list[RayReply | NodeReply]:
        """Send a call: one message to each rank, or to each node."""
        if tasks[0].kind in ("create", "drop"):
            self._note(ranks, tasks, of_rank, inputs)
        by_node = self.by_node
        if by_node is None or (tasks[0].concurrent and self._sender.runs_concurrent(ranks[0])):
            return [self._send(rank, tasks[index], inputs) for rank, index in zip(ranks, of_rank, strict=True)]
        through, indices, direct = list(ranks), list(of_rank), dict[int, RayReply | NodeReply]()
        if not by_node.reaches_all:
            pairs = list(zip(ranks, of_rank, strict=True))
            direct = {rank: self._send(rank, tasks[i], inputs) for rank, i in pairs if not by_node.reaches(rank)}
            through = [rank for rank in ranks if rank not in direct]
            indices = [index for rank, index in pairs if rank not in direct]
        used = dict.fromkeys(indices)
        wires = {index: self._wire(tasks[index]) for index in used}
        waits = {index: tuple(self._inputs(tasks[index], inputs)) for index in used} if inputs else {}
        sent = by_node.send(through, indices, tasks, wires, waits) if through else []
        if not direct:
            return list(sent)
        direct.update(zip(through, sent, strict=True))
        return [direct[rank] for rank in ranks]

    def _note(self, ranks: Sequence[int], tasks: Sequence[Task], of_rank: Sequence[int], inputs: InputReplies) -> None:
        """Remember what is constructed and dropped."""
        first = tasks[0]
        if first.kind == "drop":
            self.created.pop(first.instance, None)
            self._meshes.pop(first.instance, None)
            return
        if self._is_driver and first.instance not in self._meshes:
            report_start(f"constructing {first.name.partition('.')[0]} on {self.name}")
        self._meshes[first.instance] = first.mesh
        if self._keeps_constructors:
            made = self.created.setdefault(first.instance, {})
            made.update({rank: (tasks[index], inputs) for rank, index in zip(ranks, of_rank, strict=True)})

    def _send(self, rank: int, task: Task, inputs: InputReplies) -> RayReply:
        """Send a task straight to its rank."""
        wire, sent = self._wire(task)
        if task.concurrent and self.waiting is not None and self._sender.runs_concurrent(rank):
            call = self._sender.send_concurrent(self.waiting, self.members[rank], rank, wire)
            return RayReply(self, rank, call.reply, task, sent, on_loop=call)
        if task.on_loop or inputs or not self._is_driver or type(wire) is not bytes or sent > _LARGEST_CACHED:
            if isinstance(wire, ray.ObjectRef):  # sent once, with the first rank's
                key = id(task)
                self._wires[key] = (self._wires[key][0], wire, 0)
            refs = self._inputs(task, inputs)
            if task.on_loop:
                assert self.waiting is not None
                call = self._sender.send(self.waiting, self.members[rank], rank, wire, refs)
                return RayReply(self, rank, call.reply, task, sent, on_loop=call)
            run = self._run_with_inputs[rank] if refs else self._run[rank]
            return RayReply(self, rank, run.remote(wire, *refs), task, sent)
        with self._lock:  # between what the actor has cached and what it is sent, nothing else may be sent
            if self._cached.get(rank) == wire:
                return RayReply(self, rank, self._run_cached[rank].remote(), task, 0)
            self._cached.pop(rank, None)
            count = self._requests[rank] = self._requests.get(rank, 0) + 1
            return RayReply(self, rank, self._run_and_cache[rank].remote(wire), task, sent, (wire, count))

    def _inputs(self, task: Task, inputs: InputReplies) -> list[Any]:
        """The refs that a task waits for: the input waiter's reply that says what it reads."""
        if not inputs:
            return []
        assert self.waiting is not None
        return [self.waiting.replies(inputs, _sources, _origins)[task.place]]

    def open_concurrent(self, ranks: Sequence[int]) -> None:
        """Have ranks run concurrent tasks from now on: Ray gives a busy actor no other work."""
        if self.waiting is not None:
            for rank in ranks:
                self._sender.open_concurrent(self.waiting, self.members[rank], rank)

    def cancel(self, replies: Sequence[Reply]) -> None:
        """Cancel tasks of event loops; returns at once."""
        calls = [reply.on_loop for reply in replies if isinstance(reply, _REPLIES) and reply.on_loop is not None]
        if calls and self.waiting is not None:
            self._sender.cancel(self.waiting, calls)

    def end_ranks(self, ranks: Sequence[int], why: str) -> Sequence[int]:
        """End the processes of ranks; the driver alone does."""
        if not self._is_driver:
            return ()
        for rank in ranks:
            self._ended[rank] = why
            ray.kill(self.members[rank].actor, no_restart=True)
        return ranks

    def withdraw(self, replies: Sequence[Reply]) -> None:
        """Cancel tasks of event loops, and tasks that their workers have not begun."""
        self.cancel(replies)
        mine = [reply for reply in replies if isinstance(reply, RayReply) and reply.on_loop is None]
        if self.waiting is None or not mine:
            return
        members = [self.members[one.rank] for one in mine]
        at = [Process(member.node, member.info.pid, member.stack) for member in members]
        withdraw(
            [(process, one.ref.task_id().hex()) for process, one in zip(at, mine, strict=True)], self.waiting.agent
        )

    def stacks_of(self, replies: Sequence[Reply]) -> Mapping[int, str]:
        """Where the coroutines of replies wait; for other replies the stacks of their ranks."""
        calls = {r.rank: r.on_loop for r in replies if isinstance(r, _REPLIES) and r.on_loop is not None}
        found: dict[int, str | None] = {}
        if calls and self.waiting is not None:
            found.update(zip(calls, self._sender.places(self.waiting, list(calls.values())), strict=True))
        known = {rank: place for rank, place in found.items() if place is not None}
        return {**self.stacks([reply.rank for reply in replies if reply.rank not in known]), **known}

    def loop_keys(self, replies: Sequence[Reply]) -> Sequence[str | None]:
        """The keys of tasks of event loops; None for a concurrent task."""
        calls = [reply.on_loop if isinstance(reply, _REPLIES) else None for reply in replies]
        return [None if call is None else call.key for call in calls]

    def waits(self, ranks: Sequence[int]) -> Mapping[int, WorkerWaits]:
        """The waits of the tasks of ranks, by rank; of a worker that does not answer nothing is known."""
        asked = [Process(member.node, member.info.pid, member.stack) for member in map(self.members.__getitem__, ranks)]
        agent = None if self.waiting is None else self.waiting.agent
        found = dict(zip(ranks, waits_of(asked, agent), strict=True))
        return {rank: wait for rank, wait in found.items() if wait is not None}

    def confirm(self, rank: int, wire: bytes, count: int) -> None:
        """The actor has answered `run_and_cache`; it may be asked to `run_cached` where that was the latest."""
        with self._lock:
            if self._requests.get(rank) == count:
                self._cached[rank] = wire

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """The stacks of ranks; the stacks of other nodes are read by the agents of these nodes."""
        asked = [Process(member.node, member.info.pid, member.stack) for member in map(self.members.__getitem__, ranks)]
        return dict(zip(ranks, stacks_of(asked, self.agents), strict=True))

    def label(self, reply: LostReply) -> str:
        """The short name of the rank of a reply, with its coordinate."""
        mesh = self._meshes.get(reply.instance)
        return self.members[reply.rank].info.label(None if mesh is None else mesh.coordinate(reply.rank))

    def lost(self, reply: LostReply, error: Exception) -> Outcome:
        """The outcome of a rank for which Ray raised an error."""
        mesh = self._meshes.get(reply.instance)
        coordinate = None if mesh is None else mesh.coordinate(reply.rank)
        member = self.members[reply.rank]
        ended = getattr(error, "actor_id", None)
        own = ended if ended in self._former else member.id  # a worker that had this rank before
        unsure = isinstance(error, ray.exceptions.ActorUnavailableError)
        lives = unsure and is_known_to_live(Process(member.node, member.info.pid, member.stack), self.agents)
        failure = to_failure(error, member.info, coordinate, self.labels, own, reply.name, lives=lives)
        if failure.died and not failure.upstream and not unsure:
            self.deaths.setdefault(reply.rank, reply.name)
            if reply.rank in self._ended:
                failure = replace(failure, message=self._ended[reply.rank])
            if reply.died_in is not None:
                message = f"it was lost before this call, during {reply.died_in}; {failure.message}"
                failure = replace(failure, message=message, repeated=True)
        return Outcome(reply.rank, failure=failure)

    def _wire(self, task: Task) -> tuple[Any, int]:
        """The wire form of a task, which all of its ranks share, and its size in bytes; kept as long as the task is."""
        key = id(task)
        found = self._wires.get(key)
        if found is not None:
            return found[1:]
        try:
            wire, nbytes = task_to_wire(task)
        except (ray.exceptions.RayError, TwinkleError, UncheckedError):
            raise
        except Exception as error:  # whatever a value's own pickling raises
            raise DispatchError(f"{task.name}: {unsendable(task)} cannot be sent: {error}") from error
        self._wires[key] = weakref.ref(task, lambda _: self._wires.pop(key, None)), wire, nbytes
        return wire, nbytes


def _sources(inputs: InputReplies) -> tuple[list[ReplySource], list[ReplySource]]:
    """Where the answers of the inputs, and of the watched replies, come from."""
    return [_source(reply) for reply in inputs], [_source(reply) for reply in inputs.watched]


def _origins(inputs: InputReplies) -> Origins:
    """The nodes that the inputs and the watched replies need."""
    found: dict[str, list[Origin]] = {}
    for index, reply in enumerate([*inputs, *inputs.watched]):
        assert isinstance(reply, _REPLIES), "a reply of another backend"
        info = reply.source.group.members[reply.rank].info
        for node in reply.nodes:
            found.setdefault(node, []).append(Origin(index, info, reply.name))
    return found


def _source(reply: Reply) -> ReplySource:
    assert isinstance(reply, _REPLIES), "a reply of another backend"
    return reply.ref if isinstance(reply, RayReply) else ReplyAmong(reply.source.first, reply.rank)
