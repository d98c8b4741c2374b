"""Evaluation: rewards of held-out prompts, and pass@k, with their standard errors."""

from __future__ import annotations

import dataclasses
import math
from math import comb
from typing import TYPE_CHECKING, Any

import torch

from twinkle_engines.algorithms.episodes import episode_rewards
from twinkle_engines.algorithms.grading import column_names
from twinkle_engines.algorithms.grading import rewards as grader_of
from twinkle_remote import get

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_engines.batches.rollouts import Rollouts
    from twinkle_engines.samplers.params import SamplingParams
    from twinkle_engines.tracking.rollout_sink import RolloutSink

RIGHT = 1.0
"""The reward of an episode that counts as right, or more."""


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
    if n < 1 or not len(rows):
        raise ValueError(f"evaluate needs at least one prompt, and n at or above 1, got {len(rows)} prompts and n={n}")
    drawing = dataclasses.replace(get(sampler.own_params()) if params is None else params, n=n)
    rollouts: Rollouts = get(grader_of(*rewards).grade(sampler.sample(rows, drawing)))
    found: dict[str, float] = {}
    columns: dict[str, list[float] | None] = {"reward": None}
    columns |= {f"{name}_1" if name == "reward" else name: rollouts.column(name) for name in column_names(rewards)}
    for name, column in columns.items():
        episodes = episode_rewards(rollouts, None if column is None else torch.tensor(column, dtype=torch.float64))
        groups = [episodes.rewards[list(row)] for row in episodes.rows]
        found |= _mean(name, [float(one[~one.isnan()].mean()) for one in groups if not bool(one.isnan().all())])
        if column is None:
            right = [(len(one), int((one >= RIGHT).sum())) for one in groups]
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
