import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from post_training import GROUP, PROMPT, Options, Rewards, Rollouts, Sampler, train
from text import encode, passages, share_of_real_phrases
from tiny_gpt import Size

from twinkle import DeviceMesh

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = Size(context=16, blocks=2)


def run(mode: str, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, str(EXAMPLES / "post_training.py"), "--mode", mode, "--out", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads((folder / "post_training.json").read_text())
    return figures, done.stdout


@pytest.mark.ray
@pytest.mark.timeout(1000)
def test_one_process_and_twelve_workers_give_the_same_numbers(tmp_path: Path) -> None:
    options = ("--sft-steps", "4", "--steps", "2", "--seed", "5")
    whole, _ = run("local", tmp_path / "local", *options)
    split, told = run("ray", tmp_path / "ray", *options)
    assert len(whole["losses"]) == 4 and len(whole["rewards"]) == 2
    assert split["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert split["rewards"] == pytest.approx(whole["rewards"], abs=1e-3)
    assert (tmp_path / "ray" / "post_training.png").read_bytes().startswith(b"\x89PNG")
    assert f"curves: {tmp_path / 'ray' / 'post_training.png'}" in told


def test_loss_falls_and_reward_rises() -> None:
    history = train(Options("local", sft_steps=80, steps=12, seed=1), SMALL)
    assert sum(history.losses[-5:]) / 5 < history.losses[0] - 1.0
    assert sum(history.rewards[-3:]) > 2 * sum(history.rewards[:3])
    assert len(history.before) == len(history.after) == 4 and history.before != history.after


def test_samples_do_not_depend_on_how_prompts_are_split() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=1, device_type="cpu")
    sampler = Sampler(SMALL, 0, device_mesh=mesh)
    prompts = passages(PROMPT, every=1000)[:4]
    together = sampler.sample(prompts, 7)
    halves = [sampler.sample(prompts[:1], 7), sampler.sample(prompts[1:], 7)]
    assert torch.equal(together.words, torch.cat([half.words for half in halves]))
    assert together.words.shape == (4, GROUP, SMALL.context)
    assert together.words[0, 3, :PROMPT].tolist() == encode(prompts[0], SMALL.vocabulary)
    assert not torch.equal(together.words, sampler.sample(prompts, 8).words)
    assert sampler.sample([], 7).words.shape == (0, GROUP, SMALL.context)


def test_advantages_compare_the_texts_of_one_prompt() -> None:
    rewards = Rewards(Size(), device_mesh=DeviceMesh.from_sizes(dp_size=1, device_type="cpu"))
    size = Size().vocabulary
    real = torch.tensor([encode(passage, size) for passage in passages(32, every=500)[:GROUP]])
    words = torch.stack([real, real])
    words[:, GROUP // 2 :, PROMPT:] = 0
    nothing = torch.zeros(2, GROUP)
    graded = rewards.grade(Rollouts(words, torch.zeros(2, GROUP, 24), nothing, nothing))
    assert graded.rewards[0, 0].item() == pytest.approx(share_of_real_phrases(words[0, 0, PROMPT - 2 :].tolist(), size))
    assert graded.rewards[:, : GROUP // 2].min() > graded.rewards[:, GROUP // 2 :].max()
    assert graded.advantages.mean(dim=1).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert graded.advantages.std(dim=1).tolist() == pytest.approx([1.0, 1.0], abs=1e-2)
