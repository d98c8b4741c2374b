"""Run the seven recipes in this process and draw what each learns: docs/pictures/recipes.png.

python examples/curves.py docs/pictures   # about ten minutes on two cores
"""

from __future__ import annotations

import sys
from pathlib import Path

import agent
import distillation
import dpo
import grpo
import ppo
import reward_model
import sft


def curves() -> dict[str, list[tuple[int, float]]]:
    """By recipe and figure the steps with their values."""

    def of(name: str, history: list[dict[str, float]]) -> list[tuple[int, float]]:
        return [(step, found[name]) for step, found in enumerate(history, 1) if name in found]

    return {
        "sft: loss": list(enumerate(sft.main([]), 1)),
        "grpo: reward": list(enumerate(grpo.main([]), 1)),
        "ppo: reward": of("reward", ppo.train()),
        "dpo: right answers": of("right", dpo.train()),
        "reward_model: held accuracy": of("held_accuracy", reward_model.train()),
        "distillation: divergence": of("kl", distillation.train()),
        "agent: reward": of("reward", agent.train()),
    }


def draw(path: Path, found: dict[str, list[tuple[int, float]]]) -> None:
    """A panel for each recipe."""
    import matplotlib.pyplot as plt  # of the development group alone

    figure, axes = plt.subplots(2, 4, figsize=(12, 5), layout="constrained")
    for panel, (name, points) in zip(axes.flat, found.items(), strict=False):
        panel.plot(*zip(*points, strict=True), color="#4c78a8", marker="o" if len(points) < 15 else None, markersize=4)
        panel.set_title(name, fontsize=10, loc="left")
        panel.set_xlabel("step", fontsize=9)
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
    axes.flat[-1].set_axis_off()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) / "recipes.png", curves())
