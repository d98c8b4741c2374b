"""The recipes: their first step is the one that it was, and they learn, in one process and on workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import distillation
import dpo
import ppo
import pytest

FIRST: dict[str, dict[str, float]] = {
    "ppo": {"reward": 0.046875, "tokens": 545.0, "ratio": 1.0, "entropy": 2.3318, "critic": 0.02618},
    "dpo": {"loss": 0.693147, "tokens": 160.0, "margin": 0.0, "accuracy": 0.0},
    "distillation": {"reward": 0.04375, "loss": 4.730, "kl": 4.730, "tokens": 236.0},
}
"""Figures of the first step."""
RECIPES: dict[str, Any] = {"ppo": ppo, "dpo": dpo, "distillation": distillation}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_at_most_80_lines(name: str) -> None:
    assert len(Path(RECIPES[name].__file__).read_text().splitlines()) <= 80


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["local", "threads"])
@pytest.mark.parametrize("name", RECIPES)
def test_the_first_step_is_the_one_that_it_was_in_every_mode(name: str, mode: str) -> None:
    found = RECIPES[name].train(mode, steps=1)[0]
    assert {figure: found[figure] for figure in FIRST[name]} == pytest.approx(FIRST[name], rel=0.02, abs=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_recipes_learn() -> None:
    rewards = [one["reward"] for one in ppo.train(steps=30)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2
    assert dpo.train(steps=40)[-1]["right"] > 0.25
    divergences = [one["kl"] for one in distillation.train(steps=40)]
    assert divergences[-1] < divergences[0] / 2


@pytest.mark.ray
@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_run_on_workers_of_a_cluster(name: str, joining: dict[str, str]) -> None:
    command = [sys.executable, RECIPES[name].__file__, "--mode", "ray", "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=joining)
    assert done.returncode == 0, done.stderr
    assert "step   2" in done.stdout
