"""Inputs that are not there yet: each call waits for them once, for all of its ranks."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.replies.input_waiter import start_input_waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_ray.replies.awaited_replies import Origins, ReplySource
    from twinkle_remote.protocol import InputReplies

_Sources = tuple[list["ReplySource"], list["ReplySource"]]


class WaitingInputs:
    """The replies of the input waiter of this process, by inputs; it starts with the first.

    Args:
        agent: The agent of this node; None where there is one node.
    """

    def __init__(self, agent: Any = None) -> None:
        self._agent = agent
        self._waiter: Any = None
        self._answers: dict[int, tuple[weakref.ref[InputReplies], Sequence[ray.ObjectRef[Any]]]] = {}
        self._lock = threading.Lock()

    def replies(
        self,
        inputs: InputReplies,
        sources: Callable[[InputReplies], _Sources],
        origins: Callable[[InputReplies], Origins] = lambda _: {},
    ) -> Sequence[ray.ObjectRef[Any]]:
        """Return what each distinct task of a call waits for in place of its inputs.

        Args:
            inputs: The same for all ranks of a call; with a plan.
            sources: Returns where the inputs and the watched replies come from.
            origins: Returns which nodes they need; asked where there are several.
        """
        key = id(inputs)
        with self._lock:
            found = self._answers.get(key)
            if found is not None:
                return found[1]
            assert inputs.plan is not None
            plan = inputs.plan.without_collects()
            method = self._started().shares.options(num_returns=len(plan.of_share))
            where = origins(inputs) if self._agent is not None else {}
            made = method.remote(plan, *sources(inputs), where)
            answers = made if isinstance(made, list) else [made]
            self._answers[key] = weakref.ref(inputs, lambda _: self._answers.pop(key, None)), answers
            return answers

    @property
    def agent(self) -> Any:
        """The agent of this node; None where there is one node."""
        return self._agent

    def waiter(self) -> Any:
        """The input waiter of this process."""
        with self._lock:
            return self._started()

    def take_agent(self, agent: Any) -> None:
        """Take the agent of this node, which was the only one before."""
        with self._lock:
            if self._agent is None:
                self._agent = agent
                if self._waiter is not None:
                    self._waiter.take_agent.remote(agent)

    def _started(self) -> Any:
        if self._waiter is None:
            self._waiter = start_input_waiter(self._agent)
        return self._waiter

    def close(self) -> None:
        """End the input waiter."""
        waiter, self._waiter, self._agent = self._waiter, None, None
        if waiter is not None:
            ray.kill(waiter, no_restart=True)
