"""Rewards: functions with TRL's signature as a component that grades rollouts; and evaluation by them, with errors."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import sys
import threading
import warnings
from functools import cached_property
from math import comb
from typing import TYPE_CHECKING, Any

import torch

from twinkle_engines.algorithms.advantages import episode_rewards
from twinkle_engines.batches.chats import as_chat
from twinkle_engines.batches.columns import KNOWN
from twinkle_remote import get, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from torch import Tensor

    from twinkle_engines.batches.rollouts import Rollouts

    RewardFunction = Callable[..., Sequence[float | None] | Coroutine[Any, Any, Sequence[float | None]]]

    from twinkle_engines.checkpoints.sinks import RolloutSink
    from twinkle_engines.samplers.sampler import SamplingParams


_MADE = ("prompts", "completions", "completion_ids")
"""Arguments that are made of the rollouts themselves."""


def rewards(*functions: RewardFunction, weights: Sequence[float] | None = None, **placement: Any) -> Rewards:
    """A component whose `grade` adds up what functions give to each sequence.

    Args:
        functions: They have TRL's signature ("Using a custom reward function" in its documentation): keyword arguments
            `prompts`, `completions`, `completion_ids` and each column of the rollouts, with one entry a sequence, and
            `**kwargs`; without `**kwargs` a function gets what it names. They return a list with a float for each
            sequence, or None or NaN for no vote. Plain ones run one after the other in the thread of the call; `async`
            ones at the same time in an event loop that the component keeps, so that they may keep their clients.
        weights: One for each function; None weighs all by 1.
        placement: `remote_group` and `device_mesh`, as for any component.

    Raises:
        ValueError: There is no function, or not one weight for each.
    """
    chosen = [1.0] * len(functions) if weights is None else [float(weight) for weight in weights]
    if not functions or len(chosen) != len(functions):
        raise ValueError(f"rewards needs functions, and a weight for each: got {len(functions)} and {len(chosen)}")
    return Rewards(list(functions), chosen, **placement)


@remote_class()
class Rewards:
    """Grades rollouts; see `rewards`."""

    def __init__(self, functions: list[RewardFunction], weights: list[float]) -> None:
        self._functions, self._weights = functions, weights
        self._names = column_names(self._functions)
        self._watches, self._has_said = True, False

    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts with the weighted sum of the functions' rewards, added at the last token of each sequence.

        The rewards of each function are a column by sequence with its name, NaN where it does not vote. A sequence for
        which no function votes has no reward (NaN), which `advantages` leaves out. The call waits for all functions.

        Args:
            rollouts: With `completions`. Rewards of another grader stay, and the sum of both stands in `rewards`.

        Raises:
            Exception: What a function raises, with a note that names it.
            ValueError: There are no completions, a column has the name of an argument, these functions have graded the
                rollouts already, a function returns not one number, or None, for each sequence, or it sets a
                signal, which works in the main thread alone.
        """
        count = len(rollouts.lengths)
        if again := [name for name in self._names if name in rollouts.sequences]:
            raise ValueError(f"{again[0]} has graded these rollouts already: grade each once, or take rewards= off")
        votes: list[list[float | None]] = [[] for _ in self._functions]
        if count:
            arguments = _arguments(rollouts)
            made = [_called(function, arguments, self._watches) for function in self._functions]
            self._watches = False
            waited = [one for one in made if inspect.isawaitable(one)]
            # the tasks have this thread's context, by which `current_worker` knows the worker
            done = iter(asyncio.run_coroutine_threadsafe(_together(waited), self._loop).result() if waited else [])
            given = [next(done) if inspect.isawaitable(one) else one for one in made]
            votes = [_votes(_name(one), result, count) for one, result in zip(self._functions, given, strict=True)]
        totals = [_sum(row, self._weights) for row in zip(*votes, strict=True)]
        if count and all(map(math.isnan, totals)) and not self._has_said:
            self._has_said = True
            warnings.warn(
                f"{', '.join(self._names)} voted for none of {count} completions: nothing is learnt", stacklevel=2
            )
        for name, column in zip(self._names, votes, strict=True):
            numbers = [math.nan if vote is None else vote for vote in column]
            rollouts = rollouts.with_column(name, numbers, by="sequence")
        return rollouts.replace(rewards=_added(rollouts.rewards, totals))

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of async functions, in a thread that no end of the process waits for."""
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
        return loop


def _added(before: list[Tensor] | None, totals: list[float]) -> Sequence[Any]:
    """Rewards with one more at each last token; no vote (NaN) leaves them as they are."""
    if before is None:
        return totals
    for one, total in zip(before := [one.clone() for one in before], totals, strict=True):
        if not math.isnan(total):
            one[-1] = total + (0.0 if bool(one[-1].isnan()) else float(one[-1]))
    return before


async def _together(waited: Iterable[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*waited))


def _called(function: RewardFunction, arguments: Mapping[str, Any], watches: bool) -> Any:
    """Return what a function returns: votes, or what is to be waited for. Its errors name it."""
    try:
        parameters = inspect.signature(function).parameters.values()
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        names = arguments.keys() if takes_all else arguments.keys() & {parameter.name for parameter in parameters}
        given = {name: arguments[name] for name in names}
        made = _watched(function, given) if watches else function(**given)
    except Exception as error:
        error.add_note(f"raised by the reward function {_name(function)}")
        raise
    return _awaited(function, made) if inspect.isawaitable(made) else made


def _watched(function: RewardFunction, given: Mapping[str, Any]) -> Any:
    """A call that finds out whether a function sets a signal outside the main thread, whose error it may swallow.

    Raises:
        ValueError: It does: a checker with an alarm would find each answer wrong.
    """
    if threading.current_thread() is threading.main_thread() or sys.getprofile() is not None:
        return function(**given)
    refused: list[str] = []

    def see(frame: object, event: str, called: Any) -> None:
        if event == "c_exception" and getattr(called, "__module__", "") == "_signal":
            refused.append(called.__name__)

    sys.setprofile(see)
    try:
        made = function(**given)
    finally:
        sys.setprofile(None)
    if refused:
        raise ValueError("it sets a signal, which works in the main thread alone: use a checker without an alarm")
    return made


async def _awaited(function: RewardFunction, made: Awaitable[Any]) -> Any:
    try:
        return await made
    except Exception as error:
        error.add_note(f"raised by the reward function {_name(function)}")
        raise


def _votes(name: str, given: Any, count: int) -> list[float | None]:
    """A function's votes as numbers, one for each completion; None and NaN are no vote."""
    found = [] if isinstance(given, str) else list(given)
    if len(found) != count:
        raise ValueError(
            f"the reward function {name} returned {len(found)} rewards for {count} completions: one for each"
        )
    return [None if vote is None or math.isnan(float(vote)) else float(vote) for vote in found]


def _sum(votes: Sequence[float | None], weights: Sequence[float]) -> float:
    given = [vote * weight for vote, weight in zip(votes, weights, strict=True) if vote is not None]
    return sum(given) if given else math.nan


def _arguments(rollouts: Rollouts) -> dict[str, list[Any]]:
    """The arguments of reward functions, with one entry a sequence; an answer to a chat is a message, as in TRL."""
    if rollouts.completions is None:
        raise ValueError("rewards are given to completions, and these rollouts have none: replace(completions=texts)")
    own = {name: list(column) for name, column in rollouts.sequences.items() if name not in KNOWN}
    if hidden := [name for name in _MADE if name in rollouts.columns or name in own]:
        raise ValueError(f"a column is named {hidden[0]}, as what functions get of the rollouts: use another name")

    def repeated(entries: Sequence[Any]) -> list[Any]:
        return [entry for entry, count in zip(entries, rollouts.counts, strict=True) for _ in range(count)]

    asked = repeated([_as_asked(prompt) for prompt in rollouts.prompts or [None] * len(rollouts)])
    masks = [None] * len(asked) if rollouts.mask is None else rollouts.mask
    return {
        **own,
        **{name: repeated(rollouts.column(name)) for name in rollouts.columns},
        "prompts": [prompt for prompt, _ in asked],
        "completions": [
            text if begun is None else [{"role": "assistant", "content": begun + text}]
            for (_, begun), text in zip(asked, rollouts.completions, strict=True)
        ],
        "completion_ids": [
            (ids if mask is None else ids[mask.bool()]).tolist() for ids, mask in zip(rollouts.ids, masks, strict=True)
        ],
    }


def _as_asked(prompt: Any) -> tuple[Any, str | None]:
    """The prompt, and what the answer begins with: of a chat what its last turn has begun, as TRL has it; else None."""
    chat = None if prompt is None else as_chat(prompt)
    if chat is None:
        return prompt, None
    if chat[-1]["role"] != "assistant":
        return prompt, ""
    return list(prompt)[:-1], str(chat[-1].get("content") or "")


def _name(function: RewardFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)


def column_names(functions: Sequence[RewardFunction]) -> list[str]:
    """The columns of functions: their names, with a number behind those that come again."""
    names: list[str] = []
    for function in functions:
        name = f"{_name(function)}_reward" if _name(function) in {*KNOWN, *_MADE} else _name(function)
        again = sum(one == name or one.startswith(f"{name}_") for one in names)
        names.append(f"{name}_{again + 1}" if again else name)
    return names


def evaluate(
    sampler: Any,
    rows: Sequence[Any],
    *rewards: Callable[..., Any],
    n: int = 1,
    params: SamplingParams | None = None,
    sink: RolloutSink | None = None,
) -> dict[str, float]:
    """Means over prompts of the rewards of what a sampler writes to them, graded here.

    Args:
        sampler: With `sample(prompts, params)`, such as a TransformersSampler.
        rows: Prompts, as `sample` takes them.
        rewards: Functions with TRL's signature, at least one; their sum is the reward.
        n: Answers to each prompt.
        params: How to draw; their own n is not read. None takes those of the sampler, which says them by `own_params`.
        sink: Keeps what was sampled, under the version as its step.

    Returns:
        "reward", and each function's name: the mean over prompts of the mean of their episodes. "pass@1", "pass@2",
        "pass@4" and so on up to n: the probability that one of k answers is right, of the mean of
        1 - C(wrong, k) / C(n, k) over prompts (Chen et al. 2021, arXiv 2107.03374), which is right in expectation. Each
        with "<name>_error", the spread of the prompts' means (with prompts - 1) over the root of their number, NaN of
        one prompt. "version", the oldest of the weights that wrote.

    Raises:
        ValueError: There is no prompt or no function, or n is below 1.
    """
    if n < 1 or not len(rows) or not rewards:
        raise ValueError(f"evaluate needs prompts, functions and n >= 1, got {len(rows)}, {len(rewards)} and n={n}")
    drawing = dataclasses.replace(get(sampler.own_params()) if params is None else params, n=n)
    rollouts: Rollouts = get(Rewards(list(rewards), [1.0] * len(rewards)).grade(sampler.sample(rows, drawing)))
    found: dict[str, float] = {}
    columns: dict[str, list[float] | None] = {"reward": None}
    columns |= {f"{name}_1" if name == "reward" else name: rollouts.column(name) for name in column_names(rewards)}
    for name, column in columns.items():
        episodes = episode_rewards(rollouts, None if column is None else torch.tensor(column, dtype=torch.float64))
        groups = [episodes.rewards[list(row)] for row in episodes.rows]
        found |= _mean(name, [float(one[~one.isnan()].mean()) for one in groups if not bool(one.isnan().all())])
        if column is None:
            right = [(len(one), int((one >= 1.0).sum())) for one in groups]
    k = 1
    while k <= n:
        found |= _mean(f"pass@{k}", [pass_at(k, many, some) for many, some in right if many >= k])
        k *= 2
    if (versions := rollouts.tokens.get("versions")) is not None and len(versions):
        found["version"] = float(versions.min())
    if sink is not None:
        sink.log(rollouts, step=int(found.get("version", 0)))
    return found


def pass_at(k: int, n: int, right: int) -> float:
    """1 - C(n - right, k) / C(n, k): the share of the subsets of k of n answers in which one is right."""
    return 1 - comb(n - right, k) / comb(n, k)


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    """The mean of prompts' values, and its standard error; NaN where there are too few."""
    every = torch.tensor([*values], dtype=torch.float64)
    spread = float(every.std()) if len(every) > 1 else math.nan
    return {name: float(every.mean()), f"{name}_error": spread / math.sqrt(max(len(every), 1))}
