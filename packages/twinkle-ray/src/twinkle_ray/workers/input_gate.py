"""An actor that waits for the inputs of calls, so that the first failure among them ends the wait.

Ray starts a task when all of its inputs are there, and later tasks of the same caller wait behind it. A task here has
one input only: the answer of the gate, which is all outcomes or the first failure.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from twinkle_ray.objects.wire import outcome_from_wire, outcome_to_wire
from twinkle_ray.workers.lost import to_failure
from twinkle_remote.protocol import Outcome, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT_ONCE = 100_000  # calls; each is a few futures, and no thread


class InputGate:
    """An actor on the caller's node, in which any number of calls may wait."""

    async def first_failure_or_all(
        self, inputs: Sequence[ray.ObjectRef[Any]], watched: Sequence[ray.ObjectRef[Any]]
    ) -> list[bytes | tuple[Any, ...]]:
        """Return the answers of all inputs; or, as soon as an input or a watched answer has failed, that one alone.

        Args:
            inputs: Answers to wait for.
            watched: Answers whose failure ends the wait as well.
        """
        place = {asyncio.ensure_future(_answer(ref)): index for index, ref in enumerate((*inputs, *watched))}
        found: dict[int, bytes | tuple[Any, ...]] = {}
        pending = set(place)
        try:
            while any(index not in found for index in range(len(inputs))):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    wire = found[place[one]] = one.result()
                    if outcome_from_wire(wire).failure is not None:
                        return [wire]
        finally:
            for one in pending:
                one.cancel()
        return [found[index] for index in range(len(inputs))]


async def _answer(ref: ray.ObjectRef[Any]) -> bytes | tuple[Any, ...]:
    """The answer of a worker; a failure without a label if the worker is lost, because only the caller has labels."""
    try:
        wire: bytes | tuple[Any, ...] = await ref
    except ray.exceptions.RayError as error:
        return outcome_to_wire(Outcome(-1, failure=to_failure(error, WorkerInfo("", 0, 0), None, {}, "", "")))
    return wire


def start_gate() -> Any:
    """A gate on the node of this process, which ends with it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor_class = ray.remote(InputGate)
    return actor_class.options(num_cpus=0, max_restarts=0, max_concurrency=_AT_ONCE, scheduling_strategy=here).remote()
