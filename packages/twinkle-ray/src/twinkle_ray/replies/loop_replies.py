"""Replies of tasks of event loops: workers deliver them to an actor on the caller's node, where all calls wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.objects.wire import outcome_to_wire
from twinkle_ray.workers.lost import to_failure
from twinkle_remote.protocol import Outcome, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

LOST = -1  # the rank of an outcome that stands for a lost worker, which only the caller can name
OutcomeWire = bytes | tuple[Any, ...]


class LoopReplies:
    """The pending replies of one process; a part of its input waiter."""

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[OutcomeWire]] = {}
        self._lives: dict[str, asyncio.Future[Any]] = {}

    async def watch(self, worker: str, alive: Sequence[ray.ObjectRef[Any]]) -> None:
        """Watch a worker until it ends; Ray may begin this after calls of `reply`.

        Args:
            worker: Its id.
            alive: A ref that is an error as soon as the worker has ended.
        """
        self._life(worker).set_result(await value_or_error(alive[0]))

    async def reply(self, key: str, worker: str, started: Sequence[ray.ObjectRef[Any]]) -> OutcomeWire:
        """Wait for the reply of a worker; a failure if the worker is lost, or cannot be given the task.

        Args:
            key: Id of the task.
            worker: Id of the worker.
            started: Done when the worker has started a task with inputs, which may be lost; empty without inputs.
        """
        wire = await self.reply_or_loss(key, worker, started)
        return lost_wire(wire) if isinstance(wire, ray.exceptions.RayError) else wire

    async def reply_or_loss(
        self, key: str, worker: str, started: Sequence[ray.ObjectRef[Any]]
    ) -> OutcomeWire | ray.exceptions.RayError:
        """Wait as `reply` does, but return the error of Ray instead of a failure."""
        delivered = self._reply(key)
        signs: set[asyncio.Future[Any]] = {asyncio.ensure_future(value_or_error(ref)) for ref in started}
        waiting = {delivered, self._life(worker), *signs}
        try:
            while not delivered.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                failed = [one.result() for one in done if one is not delivered and one.result() is not None]
                if failed and not delivered.done():
                    loss: ray.exceptions.RayError = failed[0]
                    return loss
            return delivered.result()
        finally:
            del self._answers[key]
            for sign in signs:
                sign.cancel()

    async def deliver(self, key: str, wire: OutcomeWire) -> None:
        """Take the outcome of a task from a worker."""
        promised = self._reply(key)
        if not promised.done():
            promised.set_result(wire)

    async def cancel(self, actor: Any, key: str) -> None:
        """Have a worker cancel a task; calls of this process that wait for their inputs do not hold it up."""
        await actor.cancel.remote(key)

    async def where(self, actor: Any, key: str) -> str | None:
        """Where a task waits on its worker's event loop."""
        place: str | None = await actor.where.remote(key)
        return place

    def _reply(self, key: str) -> asyncio.Future[OutcomeWire]:
        if key not in self._answers:
            self._answers[key] = asyncio.get_running_loop().create_future()
        return self._answers[key]

    def _life(self, worker: str) -> asyncio.Future[Any]:
        """Done when a worker has ended."""
        if worker not in self._lives:
            self._lives[worker] = asyncio.get_running_loop().create_future()
        return self._lives[worker]


async def value_or_error(ref: ray.ObjectRef[Any]) -> Any:
    """The value of a ref; an error of Ray if its worker is lost."""
    try:
        return await ref
    except ray.exceptions.RayError as error:
        return error


def lost_wire(error: Exception) -> OutcomeWire:
    """A failure without a label for a lost worker, because only the caller has labels."""
    return outcome_to_wire(Outcome(LOST, failure=to_failure(error, WorkerInfo("", 0, 0), None, {}, "", "")))
