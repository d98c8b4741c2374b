"""Predict how often a word occurs from its letters: one data-parallel component, the same in every mode.

    python examples/data_parallel.py                                # this process alone
    python examples/data_parallel.py --mode threads                 # four threads
    torchrun --nproc-per-node 4 examples/data_parallel.py           # four processes of one program
    python examples/data_parallel.py --mode ray                     # four workers on a Ray cluster that it starts

All of them print the same losses.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING

import numpy as np
from text import reference_words

import twinkle
from twinkle import DataLoader, DeviceGroup, DeviceMesh, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Word = tuple[str, float]  # the word, and the logarithm of how often it occurs


@dataclass
class Step:
    """A loss, and the gradient of the weights."""

    loss: float
    gradient: NDArray[np.float64]


@remote_class()
class LetterModel:
    """A linear model over the number of times each letter occurs in a word; every worker holds the whole model."""

    def __init__(self, device_mesh: DeviceMesh, remote_group: str | None = None) -> None:
        self.weights = np.zeros(len(ascii_lowercase) + 1)

    @remote_function(dispatch="slice_dp", collect="mean")
    def gradient(self, words: Sequence[Word]) -> Step:
        letters = np.array([[*map(word.count, ascii_lowercase), 1.0] for word, _ in words])
        error = letters @ self.weights - np.array([frequency for _, frequency in words])
        return Step(float(np.mean(error**2)), 2 * letters.T @ error / len(words))

    @remote_function(dispatch="all", collect="first")
    def apply(self, step: Step, rate: float) -> None:
        self.weights -= rate * step.gradient


def train(mode: str, steps: int) -> list[float]:
    """The loss of each step."""
    words = [(word, float(np.log(count))) for word, count in Counter(reference_words()).items()]
    losses: list[float] = []
    with twinkle.session(mode, groups=[DeviceGroup("letters", ranks=4, device_type="CPU")]):
        model = LetterModel(device_mesh=DeviceMesh.from_sizes(dp_size=4), remote_group="letters")
        loader = DataLoader(words, batch_size=256, shuffle=True)
        while len(losses) < steps:
            for batch in loader:
                step = model.gradient(batch)
                model.apply(step, 0.05)  # a lazy result: the workers read one another's gradients
                losses.append(step.loss)
    return losses[:steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("local", "threads", "ray"), default="local")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    losses = train(arguments.mode, arguments.steps)
    if os.environ.get("RANK", "0") == "0":
        for step in range(0, len(losses), 10):
            print(f"step {step:3d}  loss {losses[step]:.9f}")
        print(f"step {len(losses) - 1:3d}  loss {losses[-1]:.9f}")


if __name__ == "__main__":
    main()
