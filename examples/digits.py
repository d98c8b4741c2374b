"""The task of the recipes: count on from a digit. A tiny model answers with some digit first, and learns which."""

from __future__ import annotations

import argparse
import random
from typing import TYPE_CHECKING, Any

from twinkle.engines import supervised, tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle.engines import Rollouts

PROMPTS: list[dict[str, Any]] = [{"prompt": f"count on: {digit}", "digit": digit} for digit in range(10)]


def model_and_tokenizer(hidden_size: int = 64) -> tuple[Any, Any]:
    """A tiny config, whose random weights are large enough to learn in seconds, and its tokenizer."""
    config, tokenizer = tiny_model(vocabulary=300, hidden_size=hidden_size)
    config.initializer_range = 0.1
    return config, tokenizer


def counts_on(completions: list[str], digit: list[int], **_: Any) -> list[float]:
    """1 for the digit that comes next, else 0."""
    return [float(text == str((one + 1) % 10)) for one, text in zip(digit, completions, strict=True)]


def pair(digit: int, draw: random.Random) -> dict[str, str]:
    """The digit that comes next is preferred to another one."""
    right = (digit + 1) % 10
    wrong = draw.choice([other for other in range(10) if other != right])
    return {"prompt": f"count on: {digit}", "chosen": str(right), "rejected": str(wrong)}


def mean_rewards(rollouts: Rollouts) -> list[float]:
    """The mean reward of each row, computed where the rows are: numbers alone come to the loop."""
    return [float(row.sequence_rewards().mean()) for row in rollouts]


def tune(model: Any, tokenizer: Any, answer: Callable[[int], int] | None = None, steps: int = 20) -> None:
    """Tune a model on prompts with an answer to each digit; without one on drawn digits, as a first model."""
    draw = random.Random(0)
    for _ in range(steps):
        digits = [draw.randrange(10) if answer is None else answer(row["digit"]) for row in PROMPTS * 8]
        pairs = zip(PROMPTS * 8, digits, strict=True)
        rows = [{"prompt": row["prompt"], "completion": str(digit)} for row, digit in pairs]
        model.forward_backward(supervised(rows, tokenizer))
        model.step()


def told(step: int, figures: dict[str, float]) -> None:
    """Print the figures of a step."""
    print(f"step {step:3d}  " + "  ".join(f"{name} {value:.3f}" for name, value in figures.items()), flush=True)


def arguments(text: str | None, steps: int) -> dict[str, Any]:
    """The options of a recipe, from the command line."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("local", "threads", "ray"), default="local")
    parser.add_argument("--steps", type=int, default=steps)
    return vars(parser.parse_args())
