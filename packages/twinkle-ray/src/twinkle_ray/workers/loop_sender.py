"""Sends tasks of the event loop to the actors of a group, whose answers come over the gate of this process."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.workers.waiting_inputs import WaitingInputs

_PLACE_SECONDS = 1.0  # that a worker has to tell where its coroutines are
_numbers = count()


class LoopCall(NamedTuple):
    """A task of the event loop that was sent.

    Attributes:
        actor: The actor.
        key: Id of the task there.
        answer: The promised answer.
        signs: Refs that are errors where the worker is lost, or has not started the task.
    """

    actor: Any
    key: str
    answer: ray.ObjectRef[Any]
    signs: tuple[Any, ...]

    def loss(self) -> Exception | None:
        """The error of Ray that stands for the lost answer; None if the worker lives."""
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
        self._beside: set[int] = set()
        self._renewed: dict[int, int] = {}
        self._caller = f"{os.getpid():x}-{os.urandom(6).hex()}"

    def renew(self, rank: int, alive: Any) -> None:
        """Another worker has the rank."""
        self._lives[rank] = alive
        self._renewed[rank] = self._renewed.get(rank, 0) + 1
        self._beside.discard(rank)
        self._met = {met for met in self._met if met[1] != rank}

    def send(self, waiting: WaitingInputs, actor: Any, rank: int, wire: Any, inputs: Sequence[Any]) -> LoopCall:
        """Send a task.

        Args:
            waiting: Has the gate.
            actor: The actor.
            rank: Its rank.
            wire: The task.
            inputs: Refs of what it waits for.
        """
        gate = waiting.gate()
        caller = self._meet(gate, actor, rank)
        key = f"{caller}-{next(_numbers)}"
        started = actor.start_on_loop.remote(wire, caller, key, *inputs)
        answer = gate.answer.remote(key, self._worker(caller, rank), [started] if inputs else [])
        return LoopCall(actor, key, answer, (self._lives[rank], started))

    def runs_beside(self, rank: int) -> bool:
        """Whether a rank runs tasks beside the others."""
        return rank in self._beside

    def open_beside(self, waiting: WaitingInputs, actor: Any, rank: int) -> None:
        """Have a rank run tasks beside the others from now on."""
        if rank not in self._beside:
            caller = self._meet(waiting.gate(), actor, rank)
            actor.run_beside.remote(caller, self._worker(caller, rank))
            self._beside.add(rank)

    def send_beside(self, waiting: WaitingInputs, actor: Any, rank: int, wire: Any) -> LoopCall:
        """Send a task that runs beside the others, without inputs."""
        gate = waiting.gate()
        caller = self._meet(gate, actor, rank)
        key = f"{caller}-{next(_numbers)}"
        gate.give_task.remote(self._worker(caller, rank), key, wire)
        return LoopCall(actor, key, gate.answer.remote(key, self._worker(caller, rank), []), (self._lives[rank],))

    def _worker(self, caller: str, rank: int) -> str:
        """Id of a worker at the gate: another worker of the same rank has another one."""
        return f"{caller}-{rank}.{self._renewed.get(rank, 0)}"

    def _meet(self, gate: Any, actor: Any, rank: int) -> str:
        """Make a rank and the gate known to each other; returns the name of this process there."""
        caller = f"{self._caller}-{gate._actor_id.hex()}"
        if (caller, rank) not in self._met:
            self._met.add((caller, rank))
            actor.meet.remote(caller, gate)
            gate.watch.remote(self._worker(caller, rank), [self._lives[rank]])
        return caller

    @staticmethod
    def cancel(waiting: WaitingInputs, calls: Sequence[LoopCall]) -> None:
        """Cancel tasks; returns at once."""
        gate = waiting.gate()
        for call in calls:
            gate.cancel.remote(call.actor, call.key)

    @staticmethod
    def places(waiting: WaitingInputs, calls: Sequence[LoopCall]) -> Sequence[str | None]:
        """Where the coroutines of tasks wait; None for those that have not begun, or whose worker does not answer."""
        gate = waiting.gate()
        asked = [gate.where.remote(call.actor, call.key) for call in calls]
        told, _ = ray.wait(asked, num_returns=len(asked), timeout=_PLACE_SECONDS)
        answered = set(told)
        return [_value(ref) if ref in answered else None for ref in asked]


def _value(ref: ray.ObjectRef[Any]) -> str | None:
    try:
        place: str | None = ray.get(ref)
    except ray.exceptions.RayError:
        return None
    return place
