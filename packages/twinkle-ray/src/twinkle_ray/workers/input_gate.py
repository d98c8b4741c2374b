"""An actor that waits for the inputs of calls: the first failure ends the wait, and it plans for all tasks of a call.

Ray starts a task when all of its inputs are there, and later tasks of the same caller wait behind it. A task here has
one input only: the gate's answer for it, which says what the task reads, or is the first failure.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from twinkle_ray.objects.object_store import RayStore
from twinkle_ray.objects.wire import outcome_to_wire
from twinkle_ray.workers.awaited_answers import AwaitedAnswers
from twinkle_ray.workers.promises import Promises
from twinkle_ray.workers.task_boxes import TaskBoxes
from twinkle_remote.backends.support import plan_hand_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.workers.awaited_answers import AnswerSource
    from twinkle_remote.protocol import HandOverPlan, Outcome

_AT_ONCE = 100_000  # calls; each is a few futures, and no thread


class InputGate(Promises, TaskBoxes):
    """An actor on the caller's node, in which any number of calls may wait."""

    def __init__(self) -> None:
        Promises.__init__(self)
        TaskBoxes.__init__(self)
        self._store = RayStore("the gate of a caller")

    async def shares(self, plan: HandOverPlan, inputs: Sequence[AnswerSource], watched: Sequence[AnswerSource]) -> Any:
        """Wait for the answers of all inputs, and return what each task reads, one object for each.

        As soon as an input or a watched answer has failed, return that answer for each task.

        Args:
            plan: With the outcomes, it says what each task reads.
            inputs: AwaitedAnswers to wait for.
            watched: AwaitedAnswers whose failure ends the wait as well.
        """
        failed, outcomes = await _first_failure_or_all(inputs, watched)
        shares: Sequence[Any] = [outcome_to_wire(failed)] * len(plan.of_share) if failed is not None else ()
        shares = shares or plan_hand_over(plan, outcomes, self._store.keep)
        return shares if len(shares) > 1 else shares[0]


async def _first_failure_or_all(
    inputs: Sequence[AnswerSource], watched: Sequence[AnswerSource]
) -> tuple[Outcome | None, list[Outcome]]:
    """The first failure, if there is one, and otherwise the outcomes of all inputs."""
    answers = AwaitedAnswers()
    sources = enumerate((*inputs, *watched))
    place = {asyncio.ensure_future(answers.outcome(source)): index for index, source in sources}
    arrived: asyncio.Queue[asyncio.Task[Outcome]] = asyncio.Queue()
    for answer in place:
        answer.add_done_callback(arrived.put_nowait)
    found: dict[int, Outcome] = {}
    missing = len(inputs)
    try:
        while missing or not arrived.empty():
            answer = await arrived.get()
            outcome = answer.result()
            if outcome.failure is not None:
                return outcome, []
            found[place[answer]] = outcome
            missing -= place[answer] < len(inputs)
    finally:
        for answer in place:
            answer.cancel()
        answers.close()
    return None, [found[index] for index in range(len(inputs))]


def start_gate() -> Any:
    """A gate on the node of this process, which ends with it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor_class = ray.remote(InputGate)
    return actor_class.options(num_cpus=0, max_restarts=0, max_concurrency=_AT_ONCE, scheduling_strategy=here).remote()
