"""An actor that waits for the inputs of calls: the first failure ends the wait, and it plans for all tasks of a call.

Ray starts a task when all of its inputs are there, and later tasks of the same caller wait behind it. A task here has
one input only: the input waiter's answer for it, which says what the task reads, or is the first failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.node_actors import options_on
from twinkle_ray.cluster.remote_once import remote_once
from twinkle_ray.objects.object_store import RayStore
from twinkle_ray.objects.wire import outcome_to_wire
from twinkle_ray.replies.awaited_replies import AwaitedReplies
from twinkle_ray.replies.loop_replies import LOST, LoopReplies
from twinkle_ray.workers.lost import to_failure
from twinkle_ray.workers.lost_node_poller import LostNodeWaiter
from twinkle_remote.backends.support import plan_hand_over
from twinkle_remote.protocol import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.objects.wire import Wire
    from twinkle_ray.replies.awaited_replies import Origins, ReplySource
    from twinkle_remote.protocol import HandOverPlan


class TaskBoxes:
    """One box for each worker; a part of the input waiter."""

    def __init__(self) -> None:
        self._boxes: dict[str, asyncio.Queue[tuple[str, Wire]]] = {}

    async def give_task(self, worker: str, key: str, wire: Wire) -> None:
        """Put a task into a worker's box.

        Args:
            worker: Id of the worker.
            key: Id of the task, under which the worker delivers its outcome.
            wire: The task.
        """
        self._box(worker).put_nowait((key, wire))

    async def next_task(self, worker: str, seconds: float) -> tuple[str, Wire] | None:
        """The next task of a worker, after at most so many seconds; None without one."""
        try:
            return await asyncio.wait_for(self._box(worker).get(), seconds)
        except TimeoutError:
            return None

    def _box(self, worker: str) -> asyncio.Queue[tuple[str, Wire]]:
        if worker not in self._boxes:
            self._boxes[worker] = asyncio.Queue()
        return self._boxes[worker]


_AT_ONCE = 100_000  # calls; each is a few futures, and no thread
_Losses = Callable[[asyncio.Queue[tuple[int, Outcome]]], Coroutine[Any, Any, None]]


class InputWaiter(LoopReplies, TaskBoxes):
    """An actor on the caller's node, in which any number of calls may wait.

    Args:
        agent: The agent of this node; None where there is one node.
    """

    def __init__(self, agent: Any) -> None:
        LoopReplies.__init__(self)
        TaskBoxes.__init__(self)
        self._store = RayStore("the input waiter of a caller")
        self._lost_nodes = None if agent is None else LostNodeWaiter(agent)

    async def take_agent(self, agent: Any) -> None:
        """Take the agent of this node, which was the only one before."""
        self._lost_nodes = LostNodeWaiter(agent)

    async def shares(
        self, plan: HandOverPlan, inputs: Sequence[ReplySource], watched: Sequence[ReplySource], origins: Origins
    ) -> Any:
        """Wait for the replies of all inputs, and return what each task reads, one object for each.

        As soon as an input or a watched reply has failed, return that failure for each task.

        Args:
            plan: With the outcomes, it says what each task reads.
            inputs: The replies to wait for.
            watched: The replies whose failure ends the wait as well.
            origins: Which nodes they need; empty where there is one node.
        """
        losses = None if self._lost_nodes is None else partial(_losses, self._lost_nodes, origins)
        failed, outcomes = await _first_failure_or_all(inputs, watched, losses)
        shares: Sequence[Any] = [outcome_to_wire(failed)] * len(plan.of_share) if failed is not None else ()
        shares = shares or plan_hand_over(plan, outcomes, self._store.keep)
        return shares if len(shares) > 1 else shares[0]


async def _first_failure_or_all(
    inputs: Sequence[ReplySource], watched: Sequence[ReplySource], losses: _Losses | None
) -> tuple[Outcome | None, list[Outcome]]:
    """The first failure, if there is one, and otherwise the outcomes of all inputs.

    Args:
        inputs: As for `shares`.
        watched: As for `shares`.
        losses: Runs for ever, and gives the failure of each reply whose node is lost; None where there is one node.
    """
    answers = AwaitedReplies()
    arrived: asyncio.Queue[tuple[int, Outcome]] = asyncio.Queue()

    async def read(index: int, source: ReplySource) -> None:
        arrived.put_nowait((index, await answers.outcome(source)))

    readers = [asyncio.ensure_future(read(index, source)) for index, source in enumerate((*inputs, *watched))]
    if losses is not None:
        readers.append(asyncio.ensure_future(losses(arrived)))
    found: dict[int, Outcome] = {}
    missing = len(inputs)
    try:
        while missing or not arrived.empty():
            index, outcome = await arrived.get()
            if index in found:
                continue
            if outcome.failure is not None:
                return outcome, []
            found[index] = outcome
            missing -= index < len(inputs)
    finally:
        for reader in readers:
            reader.cancel()
        answers.close()
    return None, [found[index] for index in range(len(inputs))]


async def _losses(lost_nodes: LostNodeWaiter, origins: Origins, arrived: asyncio.Queue[tuple[int, Outcome]]) -> None:
    """Give a failure for each answer whose node is lost; one that has arrived before stays as it is."""
    reported: set[str] = set()
    while True:
        lost = await lost_nodes.next()
        for node in lost.keys() & origins.keys() - reported:
            reported.add(node)
            error = ray.exceptions.NodeDiedError(lost[node])  # type: ignore[no-untyped-call]  # Ray's own gap
            for index, info, method in origins[node]:
                arrived.put_nowait((index, Outcome(LOST, failure=to_failure(error, info, None, {}, "", method))))


def start_input_waiter(agent: Any) -> Any:
    """An input waiter on the node of this process, which ends with it.

    Args:
        agent: The agent of that node; None where there is one node.
    """
    options = options_on(ray.get_runtime_context().get_node_id(), soft=True)
    return remote_once(InputWaiter).options(max_concurrency=_AT_ONCE, **options).remote(agent)
