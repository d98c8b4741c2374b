"""A group of workers: it queues tasks for its actors, and asks these where they are."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.objects.wire import task_to_wire, unsendable
from twinkle_ray.workers.loop_calls import LoopCalls
from twinkle_ray.workers.lost import to_failure
from twinkle_ray.workers.member import answers_of, lives
from twinkle_ray.workers.replies import RayReply
from twinkle_ray.workers.task_queue import RankQueues, Waiting
from twinkle_remote.backends.support import capture, report_start
from twinkle_remote.errors import BEFORE_IT_BEGAN, CallCancelledError, DispatchError, TwinkleError
from twinkle_remote.protocol import Outcome, WorkerGroup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_ray.workers.member import Member
    from twinkle_ray.workers.task_queue import TaskQueue
    from twinkle_remote.protocol import InputReplies, Reply, Task, WorkerInfo

_numbers = count()
_CALLER = f"{os.getpid():x}-{os.urandom(6).hex()}"
_WAITS = "it waits for the arguments of the call"
_SILENT = "it does not answer: it is stopped, it holds the GIL, or its node cannot be reached"


class RayGroup(WorkerGroup):
    """The workers of one group.

    Args:
        name: Name of the group.
        members: In rank order.
        is_driver: This process has started the workers.
        keeps_constructors: Keep the tasks that constructed components, and their inputs, for a restart.

    Attributes:
        name: As given.
        size: Number of workers.
        members: As given.
        created: The tasks that constructed components, by instance, then by rank, in order.
        deaths: For each lost rank, the method during which it was lost.
        undivided: As in `WorkerGroup`.
    """

    undivided = False

    def __init__(
        self, name: str, members: Sequence[Member], *, is_driver: bool = False, keeps_constructors: bool = False
    ) -> None:
        self.name, self.size = name, len(members)
        self.members = tuple(members)
        self.created: dict[str, dict[int, tuple[Task, InputReplies]]] = {}
        self.deaths: dict[int, str] = {}
        self._is_driver, self._keeps_constructors = is_driver, keeps_constructors
        self._former: set[str] = set()
        self._ended: dict[int, str] = {}
        self._meshes: dict[str, DeviceMesh | None] = {}
        self._loops: dict[int, LoopCalls] = {}
        self._labels: Mapping[str, str] = {}
        self._queue: TaskQueue
        self._queues: RankQueues

    def connect(self, queue: TaskQueue, labels: Mapping[str, str]) -> None:
        """Take what all groups of this process share.

        Args:
            queue: The thread that sends.
            labels: Labels of the workers of all groups by actor id.
        """
        if not hasattr(self, "_queue"):
            self._queue, self._queues = queue, RankQueues(queue, self._send)
        self._labels = labels

    def restart(self, members: Sequence[Member]) -> None:
        """Have other workers in the places of those of their ranks, which have ended."""
        fresh = {member.info.rank: member for member in members}
        self._former.update(self.members[rank].id for rank in fresh)
        self.members = tuple([fresh.get(rank, member) for rank, member in enumerate(self.members)])
        for rank in fresh:
            for held in (self.deaths, self._ended, self._loops):
                held.pop(rank, None)

    def leave(self) -> None:
        """Let go of the actors, which have ended: for each handle that lives, Ray keeps a connection."""
        self._loops.clear()
        for member in self.members:
            member.actor = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RayGroup, (self.name, self.members)

    def info(self, rank: int) -> WorkerInfo:
        """The group, rank and node of a worker."""
        return self.members[rank].info

    def submit(
        self, ranks: Sequence[int], tasks: Sequence[Task], of_rank: Sequence[int], inputs: InputReplies
    ) -> Sequence[RayReply]:
        """Queue a call: one message to each rank; a task that ranks share is pickled once.

        Raises:
            DispatchError: A task does not pickle; the message names the argument.
        """
        wires = list(map(_wire_of, tasks))  # all, before the first one is sent
        if tasks[0].kind in ("create", "drop"):
            self._note(ranks, tasks, of_rank, inputs)
        items, stored = [], set[int]()
        for rank, index in zip(ranks, of_rank, strict=True):
            task, (wire, sent) = tasks[index], wires[index]
            if isinstance(wire, ray.ObjectRef):  # sent once, with the first rank's
                sent = 0 if index in stored else sent
                stored.add(index)
            key = f"{_CALLER}-{next(_numbers)}" if task.on_loop else ""
            items.append(Waiting(RayReply(self, rank, task, sent, key), task, wire, inputs))
        self._queue.put(partial(self._queues.add, items))
        return [item.reply for item in items]

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

    def _send(self, item: Waiting) -> None:
        """Send a task whose inputs are there to its rank; or answer at once, if one of them has failed."""
        reply, task = item.reply, item.task
        try:
            failure, reads = item.inputs.of_task(task)
            if failure is not None:
                reply.answer(Outcome(reply.rank, failure=failure, started=time.time()))
                return
            actor = self.members[reply.rank].actor
            given = () if reads is None else (reads,)
            if task.on_loop:
                if reply.rank not in self._loops:
                    self._loops[reply.rank] = LoopCalls(actor, _CALLER, self._queue)
                self._loops[reply.rank].start(reply, item.wire, given)
            elif task.kind == "beside":
                reply.expect(actor.run_beside.remote(item.wire, *given))
            else:
                reply.expect(actor.run.remote(item.wire, *given))
        except Exception as error:  # of the plan, or of Ray, which was shut down
            reply.answer(self._failed(reply, error))

    def _failed(self, reply: RayReply, error: Exception) -> Outcome:
        info = self.info(reply.rank)
        failure = capture(error, info.label(self._coordinate(reply)), info, reply.name, live=False)
        return Outcome(reply.rank, failure=failure)

    def cancel(self, replies: Sequence[Reply]) -> None:
        """Cancel tasks of event loops, and tasks that their workers have not begun."""
        for reply in replies:
            if isinstance(reply, RayReply):
                self._queue.put(partial(self._cancel, reply))

    def _cancel(self, reply: RayReply) -> None:
        if self._queues.withdraw(reply):
            reply.answer(self._failed(reply, CallCancelledError(BEFORE_IT_BEGAN)))
        elif reply.key:
            self.members[reply.rank].actor.cancel.remote(reply.key)
        elif reply.ref is not None:
            self.members[reply.rank].actor.withdraw.remote(reply.ref.task_id().hex())

    def end_rank(self, rank: int, why: str) -> bool:
        """End the process of a rank; the driver alone does."""
        if self._is_driver:
            self._ended[rank] = why
            ray.kill(self.members[rank].actor, no_restart=True)
        return self._is_driver

    def stacks(self, replies: Sequence[Reply]) -> Mapping[int, str]:
        """Where the coroutines of replies wait; for other replies where the methods of ranks are, as these say."""
        mine = [reply for reply in replies if isinstance(reply, RayReply)]
        waiting = {reply.rank: _WAITS for reply in mine if self._queues.waits(reply)}
        loops = [reply for reply in mine if reply.key and reply.rank not in waiting]
        asked = [self.members[reply.rank].actor.where.remote(reply.key) for reply in loops]
        known = {reply.rank: place for reply, place in zip(loops, answers_of(asked), strict=True) if place is not None}
        rest = [reply.rank for reply in mine if reply.rank not in waiting and reply.rank not in known]
        found = answers_of([self.members[rank].actor.stack.remote() for rank in rest])
        busy = {rank: stack or _SILENT for rank, stack in zip(rest, found, strict=True)}
        return {**busy, **waiting, **known}

    def _coordinate(self, reply: RayReply) -> Mapping[str, int] | None:
        mesh = self._meshes.get(reply.instance)
        return None if mesh is None else mesh.coordinate(reply.rank)

    def lost(self, reply: RayReply, error: BaseException) -> Outcome:
        """The outcome of a rank for which Ray raised an error; it may ask the worker whether it lives."""
        member = self.members[reply.rank]
        ended = getattr(error, "actor_id", None)
        own = ended if ended in self._former else member.id  # a worker that had this rank before
        unsure = isinstance(error, ray.exceptions.ActorUnavailableError)
        alive = unsure and lives(member)
        failure = to_failure(error, member.info, self._coordinate(reply), self._labels, own, reply.name, lives=alive)
        if failure.died and not failure.upstream and not unsure:
            self.deaths.setdefault(reply.rank, reply.name)
            if reply.rank in self._ended:
                failure = replace(failure, message=self._ended[reply.rank])
            if reply.died_in is not None:
                message = f"it was lost before this call, during {reply.died_in}; {failure.message}"
                failure = replace(failure, message=message, repeated=True)
        return Outcome(reply.rank, failure=failure)


def _wire_of(task: Task) -> tuple[Any, int]:
    """The wire form of a task, and its size in bytes."""
    try:
        return task_to_wire(task)
    except (ray.exceptions.RayError, TwinkleError):
        raise
    except Exception as error:  # whatever a value's own pickling raises
        raise DispatchError(f"{task.name}: {unsendable(task)} cannot be sent: {error}") from error
