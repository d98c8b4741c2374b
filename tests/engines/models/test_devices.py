"""Columns that samplers have left on GPUs, by substitutes; and devices that are not what a group says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.fake_cuda import FakeCudaMode, fake_cuda

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.engines import Rollouts
from twinkle_engines.batches.micro_batches import micro_batches
from twinkle_engines.models.layout import own_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is made on "cuda" is made of fakes, and nobody looks for a driver."""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    with FakeCudaMode():
        yield


def _rollouts(move: Callable[[torch.Tensor], torch.Tensor], only: str | None = None) -> Rollouts:
    columns: dict[str, list[torch.Tensor]] = {
        "ids": [torch.tensor([1, 2, 3]), torch.tensor([4, 5])],
        "mask": [torch.tensor([0, 1, 1]), torch.tensor([0, 1])],
        "logprobs": [torch.tensor([0.0, -1.0, -2.0]), torch.tensor([0.0, -3.0])],
    }
    moved: dict[str, Any] = {
        name: [move(value) if only in (None, name) else value for value in values] for name, values in columns.items()
    }
    return Rollouts(moved.pop("ids"), moved.pop("mask"), counts=[1, 1], **moved)


@pytest.mark.parametrize("only", [None, "ids", "mask", "logprobs"])
@pytest.mark.parametrize("packed", [False, True])
def test_rollouts_on_a_gpu_are_batches_like_any(only: str | None, packed: bool) -> None:
    size = 8 if packed else None
    wanted = list(micro_batches(_rollouts(lambda value: value), None, size))
    found = list(micro_batches(_rollouts(fake_cuda, only), None, size))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.columns.keys() == other.columns.keys()
        for name, column in one.columns.items():
            assert column.device.type == "cpu" and torch.equal(column, other.columns[name]), name


@twinkle.remote_class()
class Asks:
    @twinkle.remote_function()
    def device(self) -> str:
        return str(own_device(twinkle.current_worker().mesh))


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
@pytest.mark.parametrize("mode", ["local", "threads"])
def test_a_group_of_gpus_that_torch_does_not_see_is_an_error(mode: Any) -> None:
    groups = [DeviceGroup("gpus", 1, "GPU"), DeviceGroup("npus", 1, "NPU"), DeviceGroup("cpus", 1, "CPU")]
    with twinkle.session(mode, groups=groups, lazy_collect=False):
        make: Any = Asks
        with pytest.raises(ValueError, match="'gpus' has GPUs, but torch"):
            make(remote_group="gpus").device()
        with pytest.raises(ValueError, match="'npus' has NPUs"):
            make(remote_group="npus").device()
        assert make(remote_group="cpus").device() == "cpu"
        on_host = DeviceMesh.from_ranks([0], ("dp",), device_type="cpu")
        assert make(remote_group="gpus", device_mesh=on_host).device() == "cpu"


def test_the_ray_backend_tells_a_worker_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINKLE_DEVICE_TYPE", "GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="sees none"):
        own_device(None)
