"""The options of the Ray backend: what they do, and which values are refused before anything starts."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
import torch

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup
from twinkle_ray import restart

pytestmark = pytest.mark.ray

Draws = tuple[int, float, float, float]


@twinkle.remote_class()
class Model:
    def __init__(self) -> None:
        self.drawn = torch.initial_seed(), random.random(), float(np.random.rand()), float(torch.rand(()))

    @twinkle.remote_function(dispatch="all")
    def told(self) -> Draws:
        return self.drawn

    @twinkle.remote_function(execute="first")
    def draws_on_one(self) -> None:
        torch.rand(5), random.random(), np.random.rand()


def drawn_with(seed: int) -> Draws:
    return (
        seed,
        random.Random(seed).random(),
        float(np.random.RandomState(seed).rand()),
        float(torch.rand((), generator=torch.Generator().manual_seed(seed))),
    )


def test_every_generator_is_seeded_before_each_constructor_alike_on_all_ranks(ray_cluster: None) -> None:
    with twinkle.session("ray", groups=[DeviceGroup("actor", 2, "CPU")], seed=7, lazy_collect=False):
        first = twinkle.on("actor").create(Model)
        first.draws_on_one()
        told = [first.told(), twinkle.on("actor").create(Model).told()]
        with pytest.raises(twinkle.TwinkleError, match=r'initialize\("ray", restart="group"\)'):
            restart("actor")  # it has to be asked for at the start
    assert told == [[drawn_with(7 + number)] * 2 for number in range(2)]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"placement_timeout": -1}, "placement_timeout=-1 must be a finite number of seconds from 0 on"),
        ({"placement_timeout": float("nan")}, "placement_timeout=nan must be a finite number"),
        ({"start_timeout": 0}, "start_timeout=0 leaves workers no time to start"),
        ({"restart": "actor"}, "restart='actor' must be None or \"group\""),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_at_once(options: dict[str, Any], rule: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=rule):
        twinkle.initialize("ray", groups=[DeviceGroup("actor", 1, "CPU")], **options)
    assert time.monotonic() - began < 30  # it waits for no worker
