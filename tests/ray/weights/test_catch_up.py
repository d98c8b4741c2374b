"""Ranks that come back have the newest version when `catch_up` returns, whatever syncs begin and end meanwhile."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_ray import WeightSync
from twinkle_remote import on, remote_class, remote_function, session, stream
from twinkle_remote.backends.support import Lazy, WorkersOf, component_of, start_on_workers

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDS = int(os.environ.get("TWINKLE_TEST_RETURNS", "12"))
_RANKS = 3


@remote_class()
class Slow:
    """Weights that count versions; describing them takes a while, as on large models."""

    def __init__(self, seed: int) -> None:
        self.weight = torch.zeros(4)
        self.version = 0
        self.draw = random.Random(seed)

    def weights(self) -> Mapping[str, torch.Tensor]:
        time.sleep(self.draw.random() * 0.02)
        return {"weight": self.weight}

    def on_weights(self, version: int) -> None:
        self.version = version

    @remote_function(dispatch="all", collect="first")
    def update(self) -> None:
        self.weight += 1

    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[int]) -> list[int]:
        return rows


def version_of(component: Any) -> float:
    return float(component.version)


@pytest.mark.parametrize("in_flight", [False, True])
def test_ranks_come_back_with_the_newest_version(in_flight: bool) -> None:
    with session("threads", groups=[DeviceGroup("trainer", 1, "CPU"), DeviceGroup("sampler", _RANKS, "CPU")]):
        trainer = on("trainer").create(Slow, 0)
        sampler = on("sampler", DeviceMesh.from_sizes(dp_size=_RANKS)).create(Slow, 1)
        sync, over = WeightSync(trainer, sampler), threading.Event()
        component = component_of(sampler)
        assert component is not None

        def go_on() -> None:
            pause = random.Random(2)
            while not over.is_set():
                trainer.update()
                sync()
                time.sleep(pause.random() * 0.05)

        with ExitStack() as open_while:
            if in_flight:
                rows = open_while.enter_context(stream([[1, 2]] * 4, sampler.sample, ahead=2))
                next(rows)
            trainer.update()
            sync()
            loop = threading.Thread(target=go_on)
            loop.start()
            draw, stale = random.Random(3), list[tuple[float, int]]()
            try:
                for _ in range(_ROUNDS):
                    rank = draw.randrange(_RANKS)
                    own = WorkersOf(component, [rank])
                    sync.leave_out(own)
                    time.sleep(draw.random() * 0.05)
                    sync.catch_up(own)
                    known = sync.version
                    (held,) = Lazy[list[float]](start_on_workers(sampler, version_of, ranks=[rank])).result(30.0)
                    stale += [(held, known)] if held < known else []
            finally:
                over.set()
                loop.join()
        assert stale == []
