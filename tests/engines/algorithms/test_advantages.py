"""Advantages against plain loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle import get
from twinkle.engines import Advantages, Rollouts, advantages, overlong, rewards, rewards_differ
from twinkle_engines.algorithms.advantages import counted_tokens


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_returns_and_generalized_advantages_are_those_of_a_loop(
    seed: int, gamma: float, lam: float, has_values: bool
) -> None:
    """Tokens of tools are no steps; episodes of two sequences go on where the first has ended."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [4, 1, 6, 3]
    mask = [(torch.rand(n, generator=generator) < 0.6).int() for n in lengths]
    columns: dict[str, Any] = {
        name: [torch.randn(n, generator=generator) for n in lengths]
        for name in ("rewards", "values", "logprobs", "ref_logprobs")
    }
    rollouts = Rollouts([list(range(n)) for n in lengths], mask=mask, counts=[3, 1], **columns)
    rollouts = rollouts.with_column("episode", [7, 2, 7, 7], by="sequence")
    how: Any = "gae" if has_values else "reinforce++"
    options: Any = {"lam": lam} if has_values else {}
    made = advantages(rollouts, how, scale=False, gamma=gamma, kl=0.3, **options)
    for episode in ([0, 2], [1], [3]):
        steps: list[list[float]] = []
        places = []
        for i in episode:
            for t in range(lengths[i]):
                reward = float(columns["rewards"][i][t])
                if t and mask[i][t]:
                    reward -= 0.3 * float(columns["logprobs"][i][t] - columns["ref_logprobs"][i][t])
                    steps.append([reward, float(columns["values"][i][t]) if has_values else 0.0])
                    places.append((i, t))
                elif steps:
                    steps[-1][0] += reward
        expected, running, following = [], 0.0, 0.0
        for reward, value in reversed(steps):
            running = reward + gamma * following - value + gamma * (lam if has_values else 1.0) * running
            following = value
            expected.append(running)
        found = [float(made.column("advantages")[i][t]) for i, t in places]
        assert found == pytest.approx(expected[::-1], abs=1e-4)
        if has_values:
            returns = [float(made.column("returns")[i][t]) for i, t in places]
            assert returns == pytest.approx([a + step[1] for a, step in zip(found, steps, strict=True)], abs=1e-4)
    scaled = advantages(rollouts, how, gamma=gamma, kl=0.3, **options)
    counted = counted_tokens(rollouts)
    right = made.tokens["advantages"][counted]
    if len(right) > 1:
        right = (right - right.mean()) / (right.std(unbiased=False) + 1e-8)
        assert scaled.tokens["advantages"][counted].tolist() == pytest.approx(right.tolist(), abs=1e-3)


def test_an_episode_of_several_sequences_is_one_of_the_row() -> None:
    rollouts = Rollouts([[1, 2, 3]] * 5, rewards=[0.0, 1.0, 0.0, 2.0, 2.0], counts=[4, 1])
    rollouts = rollouts.with_column("episode", [0, 0, 1, 1, 0], by="sequence")
    found = advantages(rollouts, "grpo", scale=False)
    assert [float(one[1]) for one in found.advantages or ()] == [-0.5, -0.5, 0.5, 0.5, 0]
    assert rewards_differ(rollouts[0]) and not rewards_differ(rollouts[1])
    assert not rewards_differ(rollouts[0].replace(rewards=[0.0, 2.0, 1.0, 1.0]))
    assert not rewards_differ(rollouts[0].replace(rewards=[math.nan] * 4))


def test_what_was_cut_off_does_not_count_but_its_reward_does() -> None:
    finish = ["stop", "length", "stop", "stop"]
    rollouts = Rollouts([[1, 2, 3]] * 4, rewards=[0.0, 1.0, 0.0, 1.0], counts=[4], finish=finish)
    made = advantages(rollouts, "grpo", truncated="mask")
    assert [one.tolist() for one in made.mask or ()] == [[1, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1]]
    assert float(made.column("advantages")[0][1]) == pytest.approx(-0.5 / (1 / 3) ** 0.5, rel=1e-3)
    whole = advantages(rollouts.with_column("episode", [0, 0, 1, 1], by="sequence"), truncated="mask")
    assert [bool(one.any()) for one in whole.mask or ()] == [False, False, True, True]
    with pytest.raises(KeyError, match="finish"):
        advantages(rollouts.replace(finish=None), truncated="mask")


def test_a_stage_gives_what_the_function_gives_and_refuses_what_needs_the_whole_batch() -> None:
    rollouts = Rollouts([[1, 2, 3]] * 4, rewards=[0.0, 1.0, 0.0, 3.0], counts=[2, 2])
    assert get(Advantages("grpo", scale=False).add(rollouts)) == advantages(rollouts, "grpo", scale=False)
    greedy = rollouts.with_column("greedy", [1.0, 2.0], by="row")
    expected = advantages(rollouts, "remax", baselines=[1.0, 2.0])
    assert get(Advantages("remax", baselines="greedy").add(greedy)).tokens["advantages"].tolist() == (
        expected.tokens["advantages"].tolist()
    )
    kinds: Any = ("reinforce++", "reinforce++baseline", "gae")
    for how in kinds:
        with pytest.raises(ValueError, match="whiten"):
            Advantages(how)
    valued = rollouts.replace(values=rollouts.ids)
    made = get(Advantages("gae", scale=False, gamma=0.9, lam=0.5, truncated="keep").add(valued))
    assert made == advantages(valued, "gae", scale=False, gamma=0.9, lam=0.5)
    penalised = rollouts.replace(logprobs=[[-1.0] * 3] * 4, ref_logprobs=[[-2.0] * 3] * 4)
    assert get(Advantages("rloo", kl=0.1).add(penalised)) == advantages(penalised, "rloo", kl=0.1)


def test_an_option_that_is_not_read_is_refused() -> None:
    rollouts = Rollouts([[1, 2, 3]] * 2, rewards=[0.0, 1.0], counts=[2])
    wrong: list[Any] = [{"gamma": 0.9}, {"lam": 0.9}, {"baselines": [1.0]}, {"kl": -1.0}, {"truncated": "drop"}]
    for options in wrong:
        with pytest.raises(ValueError, match=r"got|reads no"):
            advantages(rollouts, "grpo", **options)
    with pytest.raises(ValueError, match="baselines"):
        advantages(rollouts, "remax")
    with pytest.raises(ValueError, match="1 rows: one for each"):
        advantages(rollouts, "remax", baselines=[1.0, 2.0])
    with pytest.raises(KeyError, match="values"):
        advantages(rollouts, "gae")


def test_overlong_answers_are_punished_by_length() -> None:
    assert overlong(10, 4)([[0] * n for n in (3, 6, 8, 10, 12)]) == [0.0, 0.0, -0.5, -1.0, -1.0]
    answers = Rollouts([[1] * 9, [1] * 3], mask=[[0] + [1] * 8, [1] * 3], completions=["a", "b"])
    graded = get(rewards(overlong(limit=10, margin=4)).grade(answers))
    assert graded.column("overlong") == [-0.5, 0.0]
    with pytest.raises(ValueError, match="margin"):
        overlong(4, margin=5)


def test_a_row_of_one_and_sequences_without_a_reward() -> None:
    one = Rollouts([[1, 2]], rewards=[3.0])
    assert [values.tolist() for values in advantages(one).advantages or ()] == [[0, 0]]
    with pytest.raises(ValueError, match="row 0 has one sequence"):
        advantages(one, "rloo")
    some = Rollouts([[1], [2], [3]], rewards=[1.0, math.nan, 3.0], counts=[3])
    assert [values.tolist() for values in advantages(some, scale=False).advantages or ()] == [[-1], [0], [1]]


@pytest.mark.parametrize("how", ["grpo", "rloo", "reinforce++"])
@pytest.mark.parametrize(("reward", "count"), [(1000.1, 7), (100.1, 7), (-0.1, 5)])
def test_equal_rewards_have_no_advantage(how: Any, reward: float, count: int) -> None:
    alike = Rollouts([[1]] * count, rewards=[reward] * count, counts=[count])
    assert advantages(alike, how).tokens["advantages"].tolist() == [0.0] * count


@pytest.mark.parametrize("how", ["grpo", "rloo", "reinforce++"])
@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_a_reward_that_nothing_is_compared_with_is_named(how: Any, value: float) -> None:
    made = Rollouts([[1, 2]] * 4, counts=[2, 2], rewards=[1.0, 0.0, value, 0.0])
    with pytest.raises(ValueError, match="infinite"):
        advantages(made, how)
    by_token = Rollouts([[1, 2]], rewards=[[float("inf"), -float("inf")]])
    with pytest.raises(ValueError, match="infinite"):
        advantages(by_token, how)
