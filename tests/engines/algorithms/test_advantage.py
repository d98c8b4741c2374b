"""Advantages against plain loops."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle.engines import Rollouts, advantages

ROWS = st.lists(st.lists(st.floats(-4, 4, width=16), min_size=2, max_size=4), max_size=4)


def looped(rows: list[list[float]], how: str, scale: bool) -> list[float]:
    out = []
    every = [reward for row in rows for reward in row]
    for row in rows:
        for i, reward in enumerate(row):
            if how == "rloo":
                out.append(reward - statistics.mean(row[:i] + row[i + 1 :]))
                continue
            among = row if how == "grpo" else every
            out.append((reward - statistics.mean(among)) / (statistics.stdev(among) + 1e-4 if scale else 1))
    return out


@settings(deadline=None, max_examples=40)
@given(ROWS, st.sampled_from(["grpo", "rloo", "reinforce++"]), st.booleans())
def test_advantages_are_those_of_a_loop(rows: list[list[float]], how: Any, scale: bool) -> None:
    rewards = [reward for row in rows for reward in row]
    rollouts = Rollouts([[1, 2, 3] for _ in rewards], rewards=rewards, counts=[len(row) for row in rows])
    made = advantages(rollouts, how, scale=scale).advantages
    assert made is not None
    assert all(len(set(values.tolist())) == 1 for values in made)
    assert [float(values[0]) for values in made] == pytest.approx(looped(rows, how, scale), rel=1e-3, abs=1e-3)


def test_a_row_of_one_and_sequences_without_a_reward() -> None:
    one = Rollouts([[1, 2]], rewards=[3.0])
    assert [values.tolist() for values in advantages(one).advantages or ()] == [[0, 0]]
    with pytest.raises(ValueError, match="row 0 has one sequence"):
        advantages(one, "rloo")
    some = Rollouts([[1], [2], [3]], rewards=[1.0, math.nan, 3.0], counts=[3])
    assert [values.tolist() for values in advantages(some, scale=False).advantages or ()] == [[-1], [0], [1]]


@pytest.mark.parametrize("how", ["grpo", "rloo", "reinforce++"])
def test_a_row_of_which_one_reward_has_come_has_no_advantage_and_does_not_fail_the_others(how: Any) -> None:
    rewards = [math.nan, 2.0, math.nan, *([math.nan] * 2 if how == "reinforce++" else [1.0, 3.0])]
    made = advantages(Rollouts([[1]] * 5, rewards=rewards, counts=[3, 2]), how).tokens["advantages"].tolist()
    assert made[:3] == [0, 0, 0]
    assert how == "reinforce++" or made[3] == -made[4] < 0


@pytest.mark.parametrize("how", ["grpo", "rloo", "reinforce++"])
@pytest.mark.parametrize(("reward", "count"), [(1000.1, 7), (100.1, 7), (-0.1, 5)])
def test_equal_rewards_have_no_advantage(how: Any, reward: float, count: int) -> None:
    alike = Rollouts([[1]] * count, rewards=[reward] * count, counts=[count])
    assert advantages(alike, how).tokens["advantages"].tolist() == [0.0] * count


def test_errors() -> None:
    with pytest.raises(ValueError, match="no rewards"):
        advantages(Rollouts([[1]]))
    with pytest.raises(ValueError, match="not 'ppo'"):
        advantages(Rollouts([[1]], rewards=[1.0]), "ppo")  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("how", ["grpo", "rloo", "reinforce++"])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 1e38])
def test_a_reward_that_nothing_is_compared_with_is_named(how: Any, value: float) -> None:
    made = Rollouts([[1, 2]] * 4, counts=[2, 2], rewards=[1.0, 0.0, value, -value if value == 1e38 else 0.0])
    if value == 1e38 and how != "rloo":
        assert all(bool(column.isfinite().all()) for column in advantages(made, how).advantages or ())
        return
    if value == 1e38:
        made = made.replace(rewards=[1.0, 0.0, 3e38, -3e38])
    with pytest.raises(ValueError, match="reward"):
        advantages(made, how)
    by_token = Rollouts([[1, 2]], rewards=[[float("inf"), -float("inf")]])
    with pytest.raises(ValueError, match="infinite"):
        advantages(by_token, how)
