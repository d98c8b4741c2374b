"""A source dies in the middle of a message: Gloo wakes no wait for its rest, and yet every target is free at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle_ray.weights import WeightSync, WeightSyncError
from twinkle_ray.weights.transport.gloo import GlooLink

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes

SHAPE = (6 << 10, 4 << 10)
BYTES = 4 * (24 << 20)


class Model:
    def __init__(self, value: float) -> None:
        self.tensor = torch.full(SHAPE, value)

    def weights(self) -> dict[str, torch.Tensor]:
        return {"w": self.tensor}


def die_while_sending(model: Model, seconds: float) -> None:
    """End this process some time after it has posted its messages."""
    post = GlooLink.post

    def posted(link: GlooLink, messages: Any) -> Any:
        works = post(link, messages)
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return works

    setattr(GlooLink, "post", posted)  # noqa: B010 - a fault in transit


def refill(model: Model, value: float) -> None:
    model.tensor.fill_(value)


def value(model: Model) -> tuple[float, float]:
    return float(model.tensor.min()), float(model.tensor.max())


@pytest.mark.parametrize(("side", "rank"), [("source", 0), ("target", 1)])
@pytest.mark.parametrize("seconds", [0.003, 0.02])
def test_everybody_is_free_when_one_dies_in_a_message(
    process_workers: Callable[..., Any], side: str, rank: int, seconds: float
) -> None:
    actor = process_workers("actor", Model, [(1.0,)])
    sampler = process_workers("sampler", Model, [(0.0,), (0.0,)])
    sync = WeightSync(actor, sampler, transport="gloo", bucket_bytes=BYTES, timeout=120.0)
    assert sync() == 1
    actor.run(refill, 2.0)
    workers = actor if side == "source" else sampler
    workers.call(rank, die_while_sending, seconds)
    with pytest.raises(WeightSyncError, match=rf"{workers.name}\[{rank}/{workers.size}\] died"):
        sync()
    told = time.monotonic()
    assert sampler.call(0, value) == (1.0, 1.0)
    if side == "target":
        assert actor.call(0, value) == (2.0, 2.0)
    assert time.monotonic() - told < 1.0
    workers.restart(rank)
    assert sync() == 2
    assert sampler.run(value) == ([(1.0, 1.0)] if side == "source" else [(2.0, 2.0)]) * 2
    sync.close()
