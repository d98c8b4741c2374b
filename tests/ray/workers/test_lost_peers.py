"""A rank that fails or dies beside peers in a Gloo collective: its failure is raised, and the peers' folded under."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

import twinkle_remote
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import WorkerDiedError, current_worker, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.ray, pytest.mark.long]
GROUPS = {"raises": 3, "dies": 3}


@remote_class()
class Model:
    def __init__(self) -> None:
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


@pytest.fixture(scope="module")
def groups(ray_cluster: None) -> Iterator[None]:
    devices = [DeviceGroup(name, size, "CPU") for name, size in GROUPS.items()]
    with twinkle_remote.session("ray", groups=devices, lazy_collect=False):
        yield


def model(group: str) -> Model:
    mesh = DeviceMesh.from_sizes(dp_size=3, device_type="cpu")
    return twinkle_remote.on(group, mesh).create(Model)


@pytest.mark.usefixtures("groups")
def test_a_failure_that_comes_after_its_victims_is_raised() -> None:
    with pytest.raises(KeyError, match="behind it all") as caught:
        model("raises").step("raises")
    text = str(caught.value)
    assert text.startswith("Model.step failed on raises[1/3 dp=1]")
    told = re.search(r"and ([12]) more of group 'raises', after it or because of it:", text)
    assert told is not None, text  # a busy machine brings one victim's error after the cause
    victims = sum(label in text for label in ("raises[0/3 dp=0]", "raises[2/3 dp=2]"))
    assert text.count("RuntimeError") >= 1 and victims == int(told[1]), text


@pytest.mark.usefixtures("groups")
def test_a_death_is_raised_and_not_its_victims() -> None:
    with pytest.raises(WorkerDiedError, match=r"^dies\[1/3 dp=1\] died during Model.step"):
        model("dies").step("dies")
