"""Rewards: functions with TRL's signature as a component that grades rollouts."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from twinkle.engines.rollouts import Rollouts  # noqa: TC001  the annotation of a remote function
from twinkle_remote import remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    RewardFunction = Callable[..., Sequence[float | None] | Coroutine[Any, Any, Sequence[float | None]]]


def rewards(*functions: RewardFunction, weights: Sequence[float] | None = None, **placement: Any) -> Rewards:
    """A component whose `grade` adds up what functions give to each sequence.

    Args:
        functions: They have TRL's signature ("Using a custom reward function" in its documentation): keyword arguments
            `prompts`, `completions`, `completion_ids` and each column of the rollouts, with one entry a sequence, and
            `**kwargs`; without `**kwargs` a function gets what it names. They return a list with a float for each
            sequence, or None or NaN for no vote. They may be `async`, and then run at the same time.
        weights: One for each function; None weighs all by 1.
        placement: `remote_group` and `device_mesh`, as for any component.

    Raises:
        ValueError: There is no function, or not one weight for each.
    """
    if not functions:
        raise ValueError("rewards needs at least one function")
    if weights is not None and len(weights) != len(functions):
        raise ValueError(f"there are {len(weights)} weights for {len(functions)} functions: give one for each")
    if weights is not None and not all(map(math.isfinite, weights)):
        raise ValueError(f"weights={list(weights)} are not all finite: use 0 to leave a function out")
    return Rewards(list(functions), None if weights is None else list(weights), **placement)


@remote_class()
class Rewards:
    """Grades rollouts; see `rewards`.

    Args:
        functions: At least one.
        weights: One for each, or None.
    """

    def __init__(self, functions: list[RewardFunction], weights: list[float] | None = None) -> None:
        self._functions = functions
        self._weights = [1.0] * len(functions) if weights is None else weights

    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts with the weighted sum of the functions' rewards, at the last token of each sequence.

        A sequence for which no function votes has no reward (NaN), which `advantages` leaves out.

        Args:
            rollouts: With `completions`.

        Raises:
            ValueError: There are no completions, or a function returns not one entry for each sequence.
        """
        if not rollouts.lengths:
            return rollouts.replace(rewards=[])
        votes = _run([self._votes(function, rollouts) for function in self._functions])
        return rollouts.replace(rewards=[_sum(row, self._weights) for row in zip(*votes, strict=True)])

    async def _votes(self, function: RewardFunction, rollouts: Rollouts) -> list[float | None]:
        given = function(**_wanted(function, _arguments(rollouts)))
        votes = list(await given if inspect.isawaitable(given) else given)
        if len(votes) != len(rollouts.lengths):
            raise ValueError(
                f"the reward function {_name(function)} returned {len(votes)} rewards for {len(rollouts.lengths)} "
                "completions: one for each, or None for no vote"
            )
        return [_vote(function, i, vote) for i, vote in enumerate(votes)]


def _vote(function: RewardFunction, index: int, vote: Any) -> float | None:
    """A function's vote as a number; None and NaN are no vote."""
    number = math.nan if vote is None else float(vote)
    if math.isinf(number):
        raise ValueError(
            f"the reward function {_name(function)} returned {number} for completion {index}: use a large finite "
            "reward, or None for no vote"
        )
    return None if math.isnan(number) else number


def _arguments(rollouts: Rollouts) -> dict[str, list[Any]]:
    """What functions get, with one entry a sequence: what belongs to a row is repeated."""
    if rollouts.completions is None:
        raise ValueError("rewards are given to completions, and these rollouts have none: replace(completions=texts)")
    prompts = [None] * len(rollouts) if rollouts.prompts is None else rollouts.prompts
    asked = _repeated(prompts, rollouts.counts)
    masks = [torch.ones_like(ids) for ids in rollouts.ids] if rollouts.mask is None else rollouts.mask
    return {
        **{name: _repeated(column, rollouts.counts) for name, column in rollouts.columns.items()},
        "prompts": asked,
        "completions": [_as_chat(p, c) for p, c in zip(asked, rollouts.completions, strict=True)],
        "completion_ids": [ids[mask.bool()].tolist() for ids, mask in zip(rollouts.ids, masks, strict=True)],
    }


def _repeated(entries: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [entry for entry, count in zip(entries, counts, strict=True) for _ in range(count)]


def _as_chat(prompt: Any, completion: Any) -> Any:
    """The answer to a chat as the messages that it adds to it, as TRL has it."""
    chat = isinstance(prompt, list) and all(isinstance(message, dict) for message in prompt)
    return [{"role": "assistant", "content": completion}] if chat and isinstance(completion, str) else completion


def _wanted(function: RewardFunction, arguments: dict[str, list[Any]]) -> dict[str, list[Any]]:
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: values for name, values in arguments.items() if name in parameters}


def _sum(votes: Sequence[float | None], weights: Sequence[float]) -> float:
    given = [vote * weight for vote, weight in zip(votes, weights, strict=True) if vote is not None]
    return sum(given) if given else math.nan


def _run(calls: Sequence[Coroutine[Any, Any, list[float | None]]]) -> list[list[float | None]]:
    """Run all at the same time, in a thread of its own: this one may have a loop, as in a notebook.

    The thread has this one's context, by which `current_worker` and handles know the worker.
    """

    async def together() -> list[list[float | None]]:
        return await asyncio.gather(*calls)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, together()).result()


def _name(function: RewardFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)
