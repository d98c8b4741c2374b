"""A rank that raises between two collectives: its peers, which wait for it, are freed, and the group comes back."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

import twinkle_ray
import twinkle_remote
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import WorkerDiedError, current_worker, remote_class, remote_function
from twinkle_remote.call.pending.stuck_peers import is_in_collective

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.ray


@remote_class()
class Model:
    def __init__(self) -> None:
        dist.init_process_group("gloo")

    @remote_function(dispatch="all", collect="none", collective=True)
    def step(self, raising: int | None) -> float:
        total = torch.ones(2)
        dist.all_reduce(total)
        if current_worker().rank == raising:
            raise KeyError("between")
        dist.all_reduce(total)
        return float(total[0])

    @remote_function(dispatch="all", collect="none", collective=True)
    def all_raise(self) -> None:
        if current_worker().rank:
            time.sleep(1.5)
        raise KeyError("one after the other")


@pytest.fixture
def model(ray_cluster: None) -> Iterator[Model]:
    with twinkle_remote.session("ray", groups=[DeviceGroup("trainer", 3, "CPU")], restart="group", lazy_collect=False):
        yield twinkle_remote.on("trainer", DeviceMesh.from_sizes(dp_size=3, device_type="cpu")).create(Model)


def test_peers_are_freed_and_the_group_comes_back(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "twinkle"):
        with pytest.raises(KeyError, match="between"):
            model.step(1)
        with pytest.raises(WorkerDiedError, match="collective"):
            model.step(None)  # waits until the peers are free: it is no call whose collectives meet those before
    assert "trainer" in caplog.text
    twinkle_ray.restart("trainer")
    assert model.step(None) == [9.0, 9.0, 9.0]


def test_ranks_that_all_raise_are_left_alone(model: Model) -> None:
    with pytest.raises(KeyError, match="other"):
        model.all_raise()
    assert model.step(None) == [9.0, 9.0, 9.0]


HERE = 'File "/a/train.py", line 3, in step'
THERE = 'File "/x/torch/distributed/distributed_c10d.py", line 9, in all_reduce'


@pytest.mark.parametrize(
    ("frames", "expected"), [((HERE, THERE), True), ((THERE, HERE, HERE, HERE), False), ((HERE,), False), ((), False)]
)
def test_a_stack_says_whether_it_waits_in_a_collective(frames: tuple[str, ...], expected: bool) -> None:
    assert is_in_collective("\n".join(frames)) is expected
