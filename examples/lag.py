"""How old rollouts may be: the reward by step at a lag of 0, 2 and 8 versions, with and without a correction.

python examples/lag.py docs/pictures   # lag.png; about ten minutes on two cores: 5 settings, 3 seeds

The loop keeps its batches: what is trained at a step was sampled `lag` versions before. The correction weighs each
token by the ratio of its probability now to that when it was sampled, of 2 at most.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import torch
from digits import PROMPTS, counts_on, model_and_tokenizer, tune

import twinkle
from twinkle import WeightSync
from twinkle.engines import SamplingParams, TransformersModel, TransformersSampler, advantages, rewards

LAGS, SEEDS, STEPS = (0, 2, 8), (0, 1, 2), 120
COLORS = dict(zip(LAGS, ("#4c78a8", "#f2a541", "#c8586c"), strict=True))


def train(lag: int, correction: str | None, seed: int = 0, steps: int = STEPS) -> list[float]:
    """The mean reward of what was sampled at each step."""
    config, tokenizer = model_and_tokenizer()
    with twinkle.session("local", seed=seed):
        adamw = partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.0)
        actor = TransformersModel(config, optimizer=adamw)
        sampler = TransformersSampler(config, tokenizer=tokenizer, params=SamplingParams(n=32, max_new_tokens=2))
        grader = rewards(counts_on)
        tune(actor, tokenizer)
        sync = WeightSync(actor, sampler)
        sync()
        history: list[float] = []
        kept: deque[Any] = deque()
        while len(history) < steps:
            kept.append(twinkle.get(grader.grade(sampler.sample(PROMPTS))))
            history.append(float(kept[-1].sequence_rewards().mean()))
            if len(kept) > lag:
                batch = advantages(kept.popleft(), "grpo", scale=False)
                actor.forward_backward(batch, "reinforce", correction=correction)
                actor.step()
                sync()
    return history


def draw(path: Path, runs: dict[tuple[int, str | None], list[list[float]]]) -> None:
    """The mean over seeds of each setting, smoothed over 5 steps."""
    import matplotlib.pyplot as plt  # of the development group alone

    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for (lag, correction), histories in runs.items():
        mean = torch.tensor(histories).mean(0)
        smooth = mean.unfold(0, 5, 1).mean(-1)
        label = f"lag {lag}" + (", corrected" if correction else "")
        axes.plot(range(5, len(mean) + 1), smooth, color=COLORS[lag], linestyle="-" if correction else ":", label=label)
    axes.set(xlabel="step", ylabel="mean reward", ylim=(0, 1))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    found: dict[tuple[int, str | None], list[list[float]]] = {}
    for versions, rule in [(lag, rule) for lag in LAGS for rule in (None, "truncate") if lag or rule]:
        found[versions, rule] = [train(versions, rule, seed) for seed in SEEDS]
        last = [sum(one[-5:]) / 5 for one in found[versions, rule]]
        print(
            f"lag {versions}, {rule}: the last five steps' reward by seed {[round(one, 2) for one in last]}", flush=True
        )
    draw(Path(sys.argv[1]) / "lag.png", found)
