"""Checkpoints of steps: the last ones stay, and the best; a run resumes from the last complete one."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from checkpoints.test_checkpoint import Counter

from twinkle.engines import Checkpoints, load

if TYPE_CHECKING:
    from pathlib import Path


def counter(count: int) -> Counter:
    made = Counter()
    made.count = count
    return made


@pytest.mark.parametrize(("best", "stays"), [("reward", 20), ("-reward", 30), (None, None)])
def test_the_last_ones_stay_and_the_best(tmp_path: Path, best: str | None, stays: int | None) -> None:
    part = counter(0)
    checkpoints = Checkpoints(tmp_path, keep=2, best=best, counter=part)
    assert checkpoints.best is None and checkpoints.steps == [] and checkpoints.resume() is None
    rewards = {10: 0.5, 20: 0.9, 30: 0.1, 40: float("nan"), 50: 0.9, 60: 0.2}
    for step, reward in rewards.items():
        part.count = step
        checkpoints.save(step, reward=torch.tensor(reward))
    assert checkpoints.steps == sorted({*([] if stays is None else [stays]), 50, 60})
    assert {path.name for path in tmp_path.iterdir()} == {f"step-{step:06d}" for step in checkpoints.steps}
    assert checkpoints.best == (None if stays is None else tmp_path / f"step-{stays:06d}")
    again = counter(0)
    assert Checkpoints(tmp_path, best=best, counter=again).resume() == 60 and again.count == 60
    if checkpoints.best is not None:
        assert load(checkpoints.best, counter=again) == checkpoints.best and again.count == stays
    if best is not None:
        with pytest.raises(ValueError, match="needs that metric"):
            checkpoints.save(70, loss=1.0)


def test_a_step_that_is_saved_again_is_there_at_every_moment(tmp_path: Path) -> None:
    part = counter(1)
    checkpoints = Checkpoints(tmp_path, counter=part)
    checkpoints.save(5)
    shutil.copytree(tmp_path / "step-000005", tmp_path / ".step-000005")  # interrupted before it was complete
    (tmp_path / "step-000005").rename(tmp_path / ".step-000005.replaced")  # interrupted while it gave way
    again = counter(0)
    assert Checkpoints(tmp_path, counter=again).resume() == 5 and again.count == 1
    part.count = 2
    checkpoints.save(5, reward=1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005"]
    assert Checkpoints(tmp_path, counter=again).resume() == 5 and again.count == 2
    assert json.loads((tmp_path / "step-000005" / "parts.json").read_text())["metrics"] == {"reward": 1.0}


def test_what_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep=0"):
        Checkpoints(tmp_path, keep=0, counter=Counter())
    with pytest.raises(ValueError, match="name its parts"):
        Checkpoints(tmp_path)
    with pytest.raises(TypeError, match="which has no state"):
        Checkpoints(tmp_path, counter=3)
    Checkpoints(tmp_path, counter=Counter()).save(1)
    with pytest.raises(ValueError, match="has no state of other"):
        Checkpoints(tmp_path, other=Counter()).resume()
