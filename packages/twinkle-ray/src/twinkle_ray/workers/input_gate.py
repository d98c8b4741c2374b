"""An actor that waits for the inputs of calls: the first failure ends the wait, and it plans for all tasks of a call.

Ray starts a task when all of its inputs are there, and later tasks of the same caller wait behind it. A task here has
one input only: the gate's answer for it, which says what the task reads, or is the first failure.
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
from twinkle_ray.workers.awaited_answers import AwaitedAnswers
from twinkle_ray.workers.lost import to_failure
from twinkle_ray.workers.node_news import NodeNewsOnLoop
from twinkle_ray.workers.promises import LOST, Promises
from twinkle_ray.workers.task_boxes import TaskBoxes
from twinkle_remote.backends.support import plan_hand_over
from twinkle_remote.protocol import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.workers.awaited_answers import AnswerSource, Origins
    from twinkle_remote.protocol import HandOverPlan

_AT_ONCE = 100_000  # calls; each is a few futures, and no thread
_Losses = Callable[[asyncio.Queue[tuple[int, Outcome]]], Coroutine[Any, Any, None]]


class InputGate(Promises, TaskBoxes):
    """An actor on the caller's node, in which any number of calls may wait.

    Args:
        agent: The agent of this node; None where there is one node.
    """

    def __init__(self, agent: Any) -> None:
        Promises.__init__(self)
        TaskBoxes.__init__(self)
        self._store = RayStore("the gate of a caller")
        self._news = None if agent is None else NodeNewsOnLoop(agent)

    async def take_agent(self, agent: Any) -> None:
        """Take the agent of this node, which was the only one before."""
        self._news = NodeNewsOnLoop(agent)

    async def shares(
        self, plan: HandOverPlan, inputs: Sequence[AnswerSource], watched: Sequence[AnswerSource], origins: Origins
    ) -> Any:
        """Wait for the answers of all inputs, and return what each task reads, one object for each.

        As soon as an input or a watched answer has failed, return that answer for each task.

        Args:
            plan: With the outcomes, it says what each task reads.
            inputs: AwaitedAnswers to wait for.
            watched: AwaitedAnswers whose failure ends the wait as well.
            origins: Which nodes they need; empty where there is one node.
        """
        losses = None if self._news is None else partial(_losses, self._news, origins)
        failed, outcomes = await _first_failure_or_all(inputs, watched, losses)
        shares: Sequence[Any] = [outcome_to_wire(failed)] * len(plan.of_share) if failed is not None else ()
        shares = shares or plan_hand_over(plan, outcomes, self._store.keep)
        return shares if len(shares) > 1 else shares[0]


async def _first_failure_or_all(
    inputs: Sequence[AnswerSource], watched: Sequence[AnswerSource], losses: _Losses | None
) -> tuple[Outcome | None, list[Outcome]]:
    """The first failure, if there is one, and otherwise the outcomes of all inputs.

    Args:
        inputs: As for `shares`.
        watched: As for `shares`.
        losses: Runs for ever, and gives the failure of each answer whose node is lost; None where there is one node.
    """
    answers = AwaitedAnswers()
    arrived: asyncio.Queue[tuple[int, Outcome]] = asyncio.Queue()

    async def read(index: int, source: AnswerSource) -> None:
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


async def _losses(news: NodeNewsOnLoop, origins: Origins, arrived: asyncio.Queue[tuple[int, Outcome]]) -> None:
    """Give a failure for each answer whose node is lost; one that has arrived before stays as it is."""
    told: set[str] = set()
    while True:
        lost = await news.next()
        for node in lost.keys() & origins.keys() - told:
            told.add(node)
            error = ray.exceptions.NodeDiedError(lost[node])  # type: ignore[no-untyped-call]  # Ray's own gap
            for index, info, method in origins[node]:
                arrived.put_nowait((index, Outcome(LOST, failure=to_failure(error, info, None, {}, "", method))))


def start_gate(agent: Any) -> Any:
    """A gate on the node of this process, which ends with it.

    Args:
        agent: The agent of that node; None where there is one node.
    """
    options = options_on(ray.get_runtime_context().get_node_id(), soft=True)
    return remote_once(InputGate).options(max_concurrency=_AT_ONCE, **options).remote(agent)
