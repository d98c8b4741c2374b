"""Rewards: functions with TRL's signature as a component that grades rollouts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from twinkle_engines.algorithms.reward_calls import RewardCall, run_calls
from twinkle_engines.batches.chats import as_chat
from twinkle_engines.batches.columns import is_missing
from twinkle_engines.batches.given import fraction, instance, listed, seconds
from twinkle_engines.batches.rollouts import Rollouts
from twinkle_mesh import with_known_names
from twinkle_remote import remote_class, remote_function
from twinkle_remote.values import LeftOut

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    RewardFunction = Callable[..., Sequence[float | None] | Coroutine[Any, Any, Sequence[float | None]]]


def rewards(
    *functions: RewardFunction, weights: Sequence[float] | None = None, timeout: float | None = None, **placement: Any
) -> Rewards:
    """A component whose `grade` adds up what functions give to each sequence.

    Args:
        functions: They have TRL's signature ("Using a custom reward function" in its documentation): keyword arguments
            `prompts`, `completions`, `completion_ids` and each column of the rollouts, with one entry a sequence, and
            `**kwargs`; without `**kwargs` a function gets what it names. They return a list with a float for each
            sequence, or None or NaN for no vote. They run as TRL runs them: plain ones one after the other in the
            thread of the call, where no event loop runs, so that they may use `asyncio.run` and, in a main thread,
            signals; `async` ones at the same time.
        weights: One for each function; None weighs all by 1.
        timeout: Seconds that a call of `grade` may wait for its functions, which then run in threads of their own; one
            that does not come to its end is left there. None waits for ever.
        placement: `remote_group` and `device_mesh`, as for any component.

    Raises:
        TypeError: One is no function, or a weight or the timeout is no number.
        ValueError: There is no function, or not one weight for each; or the timeout is not above 0.
    """
    if not functions:
        raise ValueError("rewards needs at least one function")
    for i, function in enumerate(functions):
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"reward function {i} is {function!r:.60}: use a function, or an object that is called")
    chosen = None if weights is None else _weights(weights, len(functions))
    return Rewards(list(functions), chosen, seconds("timeout", timeout), **placement)


def _weights(weights: Any, count: int) -> list[float]:
    """One finite weight for each function, as floats."""
    found = [fraction(f"weights[{i}]", weight) for i, weight in enumerate(listed("weights", weights, "function"))]
    if len(found) != count:
        raise ValueError(f"there are {len(found)} weights for {count} functions: give one for each")
    if not all(map(math.isfinite, found)):
        raise ValueError(f"weights={found} are not all finite: use 0 to leave a function out")
    return found


def _read_by_functions(constructor: Mapping[str, Any]) -> Sequence[str] | None:
    """The columns of rollouts that reward functions name; None for all, where one takes whatever there is."""
    asked: set[str] = {"completions"}  # without which there is nothing to grade
    for function in constructor["functions"]:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # which `grade` reports
            return None
        if any(one.kind is one.VAR_KEYWORD for one in parameters):
            return None
        asked.update(one.name for one in parameters)
    return sorted({column for name in asked for column in _MADE_OF.get(name, (name,))})


_MADE_OF = {"prompts": ("prompts",), "completions": ("completions", "prompts"), "completion_ids": ("ids", "mask")}
"""The columns of rollouts of which an argument of reward functions is made; an answer to a chat goes on with it."""


@remote_class()
class Rewards:
    """Grades rollouts; see `rewards`.

    Args:
        functions: At least one.
        weights: One for each, or None.
        timeout: Seconds, or None.
    """

    @with_known_names
    def __init__(
        self, functions: list[RewardFunction], weights: list[float] | None = None, timeout: float | None = None
    ) -> None:
        self._functions = functions
        self._weights = [1.0] * len(functions) if weights is None else weights
        self._timeout = timeout

    @remote_function(dispatch="slice_dp", collect="flatten", reads=_read_by_functions, adds="rewards")
    def grade(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts with the weighted sum of the functions' rewards, at the last token of each sequence.

        A sequence for which no function votes has no reward (NaN), which `advantages` leaves out.

        Args:
            rollouts: With `completions`.

        Raises:
            TimeoutError: A function takes longer than the timeout; the error names it.
            TypeError: A function returns something else than numbers and None, or wants a column that is not there.
            ValueError: There are no completions, a column has the name of an argument, or a function returns not one
                entry for each sequence.
        """
        rollouts = instance(Rollouts, "rollouts", rollouts)
        if not rollouts.lengths:
            return rollouts.replace(rewards=[])
        arguments = _arguments(rollouts)
        calls = [
            RewardCall(_name(one), partial(one, **_wanted(one, arguments, rollouts.columns)), _is_async(one))
            for one in self._functions
        ]
        given = run_calls(calls, self._timeout)
        count = len(rollouts.lengths)
        votes = [_votes(call.name, result, count) for call, result in zip(calls, given, strict=True)]
        sums = [_sum(row, self._weights) for row in zip(*votes, strict=True)]
        largest = torch.finfo(torch.get_default_dtype()).max
        for i, one in enumerate(sums):
            if abs(one) > largest:
                raise ValueError(f"completion {i} has the reward {one}, beyond {largest:.4g}: use smaller rewards")
        return rollouts.replace(rewards=sums)


def _votes(name: str, given: Any, count: int) -> list[float | None]:
    """A function's votes as numbers, one for each completion."""
    plain = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(plain, str | bytes | Mapping | set | frozenset) or not isinstance(plain, Iterable):
        raise TypeError(
            f"the reward function {name} returned {plain!r:.60} of type {type(given).__name__}: return a list with a "
            f"number, or None for no vote, for each of the {count} completions"
        )
    votes = list(plain)
    if len(votes) != count:
        raise ValueError(
            f"the reward function {name} returned {len(votes)} rewards for {count} completions: one for each, or None "
            "for no vote"
        )
    return [_vote(name, i, vote) for i, vote in enumerate(votes)]


def _vote(name: str, index: int, vote: Any) -> float | None:
    """A vote as a number; None and NaN are no vote."""
    plain = vote.item() if hasattr(vote, "item") and math.prod(getattr(vote, "shape", (2,))) == 1 else vote
    if plain is None:
        return None
    if isinstance(plain, str | bytes) or not hasattr(plain, "__float__") or hasattr(plain, "shape"):
        raise TypeError(
            f"the reward function {name} returned {vote!r:.60} of type {type(vote).__name__} for completion {index}: "
            "return a number, or None for no vote"
        )
    reward = f"the reward of the function {name} for completion {index}"
    number = float(plain) if isinstance(plain, bool) else fraction(reward, plain)
    if math.isinf(number):
        raise ValueError(
            f"the reward function {name} returned {number} for completion {index}: use a large finite reward, or None "
            "for no vote"
        )
    return None if math.isnan(number) else number


def _arguments(rollouts: Rollouts) -> dict[str, list[Any]]:
    """The arguments of functions, with one entry a sequence: what belongs to a row is repeated."""
    if rollouts.completions is None:
        raise ValueError("rewards are given to completions, and these rollouts have none: replace(completions=texts)")
    for name in ("prompts", "completions", "completion_ids"):
        if name in rollouts.columns:
            raise ValueError(
                f"a column is named {name}, and so is what reward functions get of the rollouts themselves: use "
                "another name for the column"
            )
    prompts = [None] * len(rollouts) if rollouts.prompts is None else rollouts.prompts
    asked = [_as_asked(prompt) for prompt in prompts]
    answers = zip(_repeated(asked, rollouts.counts), rollouts.completions, strict=True)
    given: dict[str, Any] = {
        **{name: _repeated(one, rollouts.counts) for name, one in rollouts.columns.items() if not is_missing(one)},
        "prompts": [prompt for prompt, _ in _repeated(asked, rollouts.counts)],
        "completions": [_as_chat(begun, text) for (_, begun), text in answers],
    }
    if isinstance(rollouts.mask, LeftOut):
        return given  # no function asks which tokens were written
    masks = [torch.ones_like(ids) for ids in rollouts.ids] if rollouts.mask is None else rollouts.mask
    given["completion_ids"] = [ids[mask.bool()].tolist() for ids, mask in zip(rollouts.ids, masks, strict=True)]
    return given


def _as_asked(prompt: Any) -> tuple[Any, str | None]:
    """The prompt, and what the answer begins with: of a chat what its last turn has begun, as TRL has it; else None."""
    chat = None if prompt is None else as_chat(prompt)
    if chat is None:
        return prompt, None
    if chat[-1]["role"] != "assistant":
        return prompt, ""
    return list(prompt)[:-1], str(chat[-1].get("content") or "")


def _as_chat(begun: str | None, completion: Any) -> Any:
    """The answer to a chat as the message that it adds to it, as TRL has it."""
    if begun is None or not isinstance(completion, str):
        return completion
    return [{"role": "assistant", "content": begun + completion}]


def _repeated(entries: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [entry for entry, count in zip(entries, counts, strict=True) for _ in range(count)]


def _wanted(
    function: RewardFunction, arguments: dict[str, list[Any]], columns: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """The arguments that a function names, or all; what may be changed is its own, for each sequence.

    Args:
        function: The function.
        arguments: Those of all functions.
        columns: The columns of the rows, also those that no function names.

    Raises:
        TypeError: It has no signature, or wants what there is not.
    """
    try:
        parameters = inspect.signature(function).parameters
    except ValueError as error:
        raise TypeError(f"the reward function {_name(function)} has no signature: call it in a def of yours") from error
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    missing = [
        name
        for name, one in parameters.items()
        if name not in arguments and one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if missing:
        raise TypeError(
            f"the reward function {_name(function)} wants {', '.join(missing)}, but there are "
            f"{', '.join(dict.fromkeys([*columns, 'prompts', 'completions', 'completion_ids']))}: "
            "use these names, or rows with such columns"
        )
    return {name: _own(values) for name, values in arguments.items() if takes_all or name in parameters}


def _own(value: Any) -> Any:
    """The value with lists, tuples and mappings of its own: what a function changes in them, no other one sees."""
    if type(value) is dict:
        return {key: _own(one) for key, one in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(one if type(one) in _FIXED else _own(one) for one in value)
    return value


_FIXED = (int, float, str, bool, type(None))


def _sum(votes: Sequence[float | None], weights: Sequence[float]) -> float:
    given = [vote * weight for vote, weight in zip(votes, weights, strict=True) if vote is not None]
    return sum(given) if given else math.nan


def _is_async(function: RewardFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  whether it is async, not whether it is callable


def _name(function: RewardFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)
