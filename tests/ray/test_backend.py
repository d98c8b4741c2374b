"""The options of the Ray backend: what they do, and which values are refused before anything starts."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup

pytestmark = pytest.mark.ray

Draws = tuple[int, float, float, float]


@twinkle.remote_class()
class Model:
    def __init__(self) -> None:
        import random

        import numpy as np
        import torch

        self.drawn = torch.initial_seed(), random.random(), float(np.random.rand()), float(torch.rand(()))

    @twinkle.remote_function(dispatch="all")
    def told(self) -> Draws:
        return self.drawn


@pytest.mark.parametrize("seed", [7, np.int64(8)])
def test_every_generator_is_seeded_though_workers_load_numpy_and_torch_later(ray_cluster: None, seed: int) -> None:
    with twinkle.session("ray", groups=[DeviceGroup("actor", 2, "CPU")], seed=seed, lazy_collect=False):
        told = twinkle.on("actor").create(Model).told()
    number = int(seed)
    expected = (
        number,
        random.Random(number).random(),
        float(np.random.RandomState(number).rand()),
        float(torch.rand((), generator=torch.Generator().manual_seed(number))),
    )
    assert told == [expected] * 2
