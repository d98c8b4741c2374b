"""The recipes: their first step is the one that it was, and they learn, in one process and on workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import agent
import distillation
import dpo
import grpo
import lag
import ppo
import pytest
import reward_model
import sft

FIRST: dict[str, dict[str, float]] = {
    "ppo": {"reward": 0.065625, "tokens": 554.0, "ratio": 1.0, "entropy": 2.0066, "critic": 0.03606},
    "reward_model": {"loss": 0.693147, "tokens": 160.0, "margin": 0.0, "accuracy": 0.0},
    "dpo": {"loss": 0.693147, "tokens": 160.0, "margin": 0.0, "accuracy": 0.0},
    "distillation": {"reward": 0.0375, "loss": 4.1033, "kl": 4.1033, "tokens": 264.0},
}
"""Figures of the first step."""
SFT, GRPO = 6.9426, 0.0328
"""The first loss, and the first reward."""
RECIPES: dict[str, Any] = {"ppo": ppo, "dpo": dpo, "distillation": distillation, "reward_model": reward_model}


@pytest.mark.parametrize("recipe", [*RECIPES.values(), sft, grpo, agent])
def test_a_recipe_has_at_most_80_lines(recipe: Any) -> None:
    assert len(Path(recipe.__file__).read_text().splitlines()) <= 80


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["local", "threads"])
@pytest.mark.parametrize("name", RECIPES)
def test_the_first_step_is_the_one_that_it_was_in_every_mode(name: str, mode: str) -> None:
    found = RECIPES[name].train(mode, steps=1)[0]
    assert {figure: found[figure] for figure in FIRST[name]} == pytest.approx(FIRST[name], rel=0.02, abs=1e-3)


@pytest.mark.timeout(300)
def test_the_first_figures_of_the_other_recipes() -> None:
    assert sft.main(["--steps", "1"]) == pytest.approx([SFT], rel=0.02)
    assert grpo.main(["--steps", "1"]) == pytest.approx([GRPO], rel=0.02)
    assert (
        0.05 < agent.train(steps=1)[0]["reward"] < 0.2
    )  # its turns are drawn in the order in which they are asked for


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_recipes_learn() -> None:
    rewards = [one["reward"] for one in ppo.train(steps=30)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2
    assert dpo.train(steps=40)[-1]["right"] > 0.25
    assert reward_model.train(steps=40)[-1]["held_accuracy"] > 0.95
    divergences = [one["kl"] for one in distillation.train(steps=40)]
    assert divergences[-1] < divergences[0] / 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_correction_keeps_old_rollouts_useful() -> None:
    plain, corrected = (lag.train(8, rule, steps=80) for rule in (None, "truncate"))
    assert sum(corrected[-5:]) > sum(plain[-5:])


@pytest.mark.ray
@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("recipe", [*RECIPES.values(), sft, grpo, agent])
def test_recipes_run_on_workers_of_a_cluster(recipe: Any, joining: dict[str, str]) -> None:
    command = [sys.executable, recipe.__file__, "--mode", "ray", "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=joining)
    assert done.returncode == 0, done.stderr
    assert re.search("step +2 ", done.stdout)
