"""A rank that fails or dies beside peers in a Gloo collective: its failure is raised, theirs are folded under it, and
who still waits for it is freed.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

import twinkle_ray
import twinkle_remote
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import TwinkleError, WorkerDiedError, current_worker, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.ray, pytest.mark.long]


@remote_class()
class Model:
    def __init__(self) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo")

    @remote_function(dispatch="all")
    def step(self, how: str) -> float:
        total = torch.ones(1000)
        dist.all_reduce(total)
        if current_worker().rank == 1 and how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if current_worker().rank == 1 and how == "raises":
            dist.destroy_process_group()
            time.sleep(0.5)  # the peers' errors are there first
            raise KeyError("behind it all")
        dist.all_reduce(total)
        return float(total[0])

    @remote_function(dispatch="all", collect="none", collective=True)
    def together(self, raising: int | None) -> float:
        total = torch.ones(2)
        dist.all_reduce(total)
        if current_worker().rank == raising:
            raise KeyError("between")
        dist.all_reduce(total)
        return float(total[0])

    @remote_function(dispatch="all", collect="none", timeout=60)
    def shapes(self) -> None:
        dist.all_reduce(torch.ones(1000 * (1 + (current_worker().rank or 0))))

    @remote_function(dispatch="all", collect="none", collective=True)
    def all_raise(self) -> None:
        if current_worker().rank:
            time.sleep(1.5)
        raise KeyError("one after the other")


@pytest.fixture(scope="module")
def session(ray_cluster: None) -> Iterator[None]:
    groups = [DeviceGroup(name, 3, "CPU") for name in ("raises", "dies", "trainer")]
    with twinkle_remote.session("ray", groups=groups, restart="group", lazy_collect=False):
        yield


def model(group: str) -> Model:
    mesh = DeviceMesh.from_sizes(dp_size=3, device_type="cpu")
    return twinkle_remote.on(group, mesh).create(Model)


@pytest.mark.usefixtures("session")
def test_a_failure_that_comes_after_its_victims_is_raised() -> None:
    with pytest.raises(KeyError, match="behind it all") as caught:
        model("raises").step("raises")
    text = str(caught.value)
    assert text.startswith("Model.step failed on raises[1/3 dp=1]")
    told = re.search(r"and ([12]) more of group 'raises', after it or because of it:", text)
    assert told is not None, text  # a busy machine brings one victim's error after the cause
    victims = sum(label in text for label in ("raises[0/3 dp=0]", "raises[2/3 dp=2]"))
    assert text.count("RuntimeError") >= 1 and victims == int(told[1]), text


@pytest.mark.usefixtures("session")
def test_a_death_is_raised_and_not_its_victims() -> None:
    with pytest.raises(WorkerDiedError, match=r"^dies\[1/3 dp=1\] died during Model.step"):
        model("dies").step("dies")


@pytest.mark.usefixtures("session")
def test_ranks_that_all_raise_are_left_alone_and_peers_that_wait_are_freed(caplog: pytest.LogCaptureFixture) -> None:
    trainer = model("trainer")
    with pytest.raises(KeyError, match="other"):
        trainer.all_raise()
    assert trainer.together(None) == [9.0, 9.0, 9.0]
    with caplog.at_level(logging.WARNING, "twinkle"):
        with pytest.raises(KeyError, match="between"):
            trainer.together(1)
        with pytest.raises(WorkerDiedError, match="collective"):
            trainer.together(None)  # waits until the peers are free: it is no call whose collectives meet those before
    assert "trainer" in caplog.text
    twinkle_ray.restart("trainer")
    assert trainer.together(None) == [9.0, 9.0, 9.0]


@pytest.mark.usefixtures("session")
def test_a_collective_whose_shapes_differ_is_an_error_in_time() -> None:
    with pytest.raises(TwinkleError, match=r"Model.shapes") as caught:
        model("trainer").shapes()
    assert "trainer[" in str(caught.value)
