"""Samples that draw from every global generator."""

import random
from typing import Any

import numpy as np
import torch

from twinkle_data import DataLoader

Draws = tuple[int, float, float, float]


class Augmented(torch.utils.data.Dataset[Draws]):
    """Draws from every global generator."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Draws:
        return index, random.random(), float(np.random.normal()), float(torch.rand(()))


def epoch_of(dataset: object, **options: Any) -> dict[int, Draws]:
    options = {"batch_size": 4, "seed": 5} | options
    return {sample[0]: sample for batch in DataLoader(dataset, **options) for sample in batch}
