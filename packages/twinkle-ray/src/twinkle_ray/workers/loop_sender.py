"""Sends tasks of the event loop to the actors of a group, whose replies come over the input waiter of this process."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.replies.waiting_inputs import WaitingInputs
    from twinkle_ray.workers.member import Member

_PLACE_SECONDS = 1.0  # that a worker has to say where its coroutines are
_numbers = count()


class LoopCall(NamedTuple):
    """A task of the event loop that was sent.

    Attributes:
        member: The worker.
        key: Id of the task there.
        reply: The pending reply.
        signs: Refs that are errors where the worker is lost, or has not started the task.
    """

    member: Member
    key: str
    reply: ray.ObjectRef[Any]
    signs: tuple[Any, ...]

    def loss(self) -> Exception | None:
        """The error of Ray that stands for the lost reply; None if the worker lives."""
        for sign in self.signs:
            try:
                ray.get(sign, timeout=0)
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError as error:
                return error
        return None


class LoopSender:
    """Sends to the actors of one group.

    Args:
        lives: For each rank, a ref that is an error when its actor has ended.
    """

    def __init__(self, lives: Sequence[Any]) -> None:
        self._lives = list(lives)
        self._met: set[tuple[str, int]] = set()
        self._concurrent: set[int] = set()
        self._restarts: dict[int, int] = {}
        self._caller = f"{os.getpid():x}-{os.urandom(6).hex()}"

    def restart(self, rank: int, alive: Any) -> None:
        """Another worker has the rank."""
        self._lives[rank] = alive
        self._restarts[rank] = self._restarts.get(rank, 0) + 1
        self._concurrent.discard(rank)
        self._met = {met for met in self._met if met[1] != rank}

    def send(self, waiting: WaitingInputs, member: Member, rank: int, wire: Any, inputs: Sequence[Any]) -> LoopCall:
        """Send a task.

        Args:
            waiting: Has the input waiter.
            member: The worker.
            rank: Its rank.
            wire: The task.
            inputs: Refs of what it waits for.
        """
        waiter = waiting.waiter()
        caller = self._meet(waiter, member, rank)
        key = f"{caller}-{next(_numbers)}"
        started = member.actor.start_on_loop.remote(wire, caller, key, *inputs)
        answer = waiter.reply.remote(key, self._worker(caller, rank), [started] if inputs else [])
        return LoopCall(member, key, answer, (self._lives[rank], started))

    def runs_concurrent(self, rank: int) -> bool:
        """Whether a rank runs concurrent tasks."""
        return rank in self._concurrent

    def open_concurrent(self, waiting: WaitingInputs, member: Member, rank: int) -> None:
        """Have a rank run concurrent tasks from now on."""
        if rank not in self._concurrent:
            caller = self._meet(waiting.waiter(), member, rank)
            member.actor.run_concurrent.remote(caller, self._worker(caller, rank))
            self._concurrent.add(rank)

    def send_concurrent(self, waiting: WaitingInputs, member: Member, rank: int, wire: Any) -> LoopCall:
        """Send a concurrent task, without inputs."""
        waiter = waiting.waiter()
        caller = self._meet(waiter, member, rank)
        key = f"{caller}-{next(_numbers)}"
        waiter.give_task.remote(self._worker(caller, rank), key, wire)
        return LoopCall(member, key, waiter.reply.remote(key, self._worker(caller, rank), []), (self._lives[rank],))

    def _worker(self, caller: str, rank: int) -> str:
        """Id of a worker at the input waiter: another worker of the same rank has another one."""
        return f"{caller}-{rank}.{self._restarts.get(rank, 0)}"

    def _meet(self, waiter: Any, member: Member, rank: int) -> str:
        """Make a rank and the input waiter known to each other; returns the name of this process there."""
        caller = f"{self._caller}-{waiter._actor_id.hex()}"
        if (caller, rank) not in self._met:
            self._met.add((caller, rank))
            member.actor.meet.remote(caller, waiter)
            waiter.watch.remote(self._worker(caller, rank), [self._lives[rank]])
        return caller

    @staticmethod
    def cancel(waiting: WaitingInputs, calls: Sequence[LoopCall]) -> None:
        """Cancel tasks; returns at once."""
        waiter = waiting.waiter()
        for call in calls:
            waiter.cancel.remote(call.member.actor, call.key)

    @staticmethod
    def places(waiting: WaitingInputs, calls: Sequence[LoopCall]) -> Sequence[str | None]:
        """Where the coroutines of tasks wait; None for those that have not begun, or whose worker does not answer."""
        waiter = waiting.waiter()
        asked = [waiter.where.remote(call.member.actor, call.key) for call in calls]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=_PLACE_SECONDS)
        answered = set(done)
        return [_value(ref) if ref in answered else None for ref in asked]


def _value(ref: ray.ObjectRef[Any]) -> str | None:
    try:
        place: str | None = ray.get(ref)
    except ray.exceptions.RayError:
        return None
    return place
