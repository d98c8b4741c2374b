"""What a component sees whose parameters get new memory, and what is left over of that memory."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from twinkle_ray.weights import ReplaceableWeights, WeightSync, WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_ray.weights.shards.shard import Weights

pytestmark = pytest.mark.processes

TRANSPORTS = ["shared", "gloo"]
WIDTH = 1200  # layers of several MiB, which are cut, and biases that share a bucket


class Net:
    """A model with an optimizer, the same on every rank."""

    def __init__(self, fill: float) -> None:
        self.layer, self.tied = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.tied.weight = self.layer.weight
        self.net = torch.nn.Sequential(self.layer, torch.nn.BatchNorm1d(WIDTH), self.tied)
        self.first = [id(parameter) for parameter in self.net.parameters()]
        self.addresses: list[int] = []
        self.graph: Tensor | None = None
        self.makes_new = False
        fill_all(self, fill)

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Made for the first step: torch loads much for it."""
        return torch.optim.SGD(self.net.parameters(), lr=0.5, momentum=0.9)

    def weights(self) -> Weights:
        state = self.net.state_dict(keep_vars=True)
        if self.makes_new:
            return ReplaceableWeights({name: Parameter(value.data.clone(), False) for name, value in state.items()})
        return ReplaceableWeights(state)

    def on_weights(self, version: int) -> None:
        self.addresses.append(self.layer.weight.data_ptr())


def fill_all(net: Net, value: float) -> None:
    with torch.no_grad():
        for number, tensor in enumerate(net.net.state_dict().values()):
            tensor.fill_(value + number)


def check(net: Net, value: float) -> None:
    """The values are those of a fill, and the objects those of the beginning."""
    state = net.net.state_dict()
    last = len(state) - 1
    for number, (name, tensor) in enumerate(state.items()):
        want = value + (last if name in ("0.weight", "2.weight") else number)
        assert (tensor == want).all(), name
    assert [id(parameter) for parameter in net.net.parameters()] == net.first
    assert net.tied.weight is net.layer.weight
    parameters = list(net.net.parameters())
    assert all(parameter.untyped_storage().nbytes() == parameter.nbytes for parameter in parameters)
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in parameters)


def addresses(net: Net) -> list[int]:
    return net.addresses


def train(net: Net) -> None:
    """A step whose momentum goes on over syncs."""
    net.net(torch.ones(2, WIDTH)).sum().backward()
    net.optimizer.step()
    net.optimizer.zero_grad()
    assert all(id(parameter) in net.first for parameter in net.optimizer.state)


def forward(net: Net) -> None:
    net.graph = net.net(torch.ones(2, WIDTH)).sum()


def backward(net: Net) -> str:
    assert net.graph is not None
    try:
        torch.autograd.backward(net.graph)
    except RuntimeError as error:
        return str(error)
    finally:
        net.graph = None
    return "no error"


def saved_bytes(net: Net) -> int:
    file = io.BytesIO()
    torch.save(net.net.state_dict(), file)
    return file.tell()


def memory_files(net: Net) -> int:
    """Open memory files of this process; a mapping keeps a descriptor of its own."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "twinkle-weights" in os.readlink(f"/proc/self/fd/{fd}"):
                found.add(os.stat(f"/proc/self/fd/{fd}").st_ino)
    return len(found)


def mapped_files(net: Net) -> int:
    """Memory files of any process that this one maps."""
    with open("/proc/self/maps") as file:
        return len({line.split()[4] for line in file if "twinkle-weights" in line})


def make_new(net: Net, yes: bool) -> None:
    net.makes_new = yes


def synced(process_workers: Callable[..., Any], transport: Any, **options: Any) -> tuple[Any, Any, WeightSync]:
    source = process_workers("trainer", Net, [(1.0,)])
    target = process_workers("sampler", Net, [(0.0,), (0.0,)])
    return source, target, WeightSync(source, target, transport=transport, timeout=60.0, **options)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_parameters_stay_what_they_are_and_two_memories_take_turns(
    process_workers: Callable[..., Any], transport: Any
) -> None:
    source, target, sync = synced(process_workers, transport, overwrite_trained=True)
    size = max(target.run(saved_bytes))
    for version in range(1, 7):
        source.run(fill_all, float(version))
        sync()
        target.run(check, float(version))
        if version == 3:
            target.call(0, train)
            target.call(1, check, 3.0)
    for found in target.run(addresses):
        assert len(set(found)) == 2 and found[::2] == [found[0]] * 3
    assert max(target.run(saved_bytes)) <= size + 1000
    target.run(forward)
    sync()
    assert all("modified by an inplace operation" in message for message in target.run(backward))
    assert source.run(memory_files) == [2 if transport == "shared" else 0]
    sync.close()
    assert source.run(memory_files) == [0]
    assert target.run(mapped_files) == [1 if transport == "shared" else 0] * 2
    target.run(check, 6.0)
    with WeightSync(source, target, transport=transport, timeout=60.0, overwrite_trained=True) as again:
        for version in (7, 8, 9):
            source.run(fill_all, float(version))
            again()
            target.run(check, float(version))
    assert not [name for name in os.listdir("/dev/shm") if "twinkle" in name]


def test_weights_outlive_the_worker_that_sent_them(process_workers: Callable[..., Any]) -> None:
    source, target, sync = synced(process_workers, "shared")
    sync()
    source.signal(0, signal.SIGKILL)
    source.processes[0].join(10)
    target.run(check, 1.0)
    with pytest.raises(WeightSyncError, match="died"):
        sync()
    target.run(check, 1.0)
    source.restart(0)
    source.run(fill_all, 5.0)
    sync()
    target.run(check, 5.0)
    target.signal(1, signal.SIGKILL)
    target.processes[1].join(10)
    target.restart(1)
    source.run(fill_all, 6.0)
    sync()
    target.run(check, 6.0)


@pytest.mark.parametrize("keep_old", [True, False])
def test_other_parameters_each_time_are_an_error(process_workers: Callable[..., Any], keep_old: bool) -> None:
    _, target, sync = synced(process_workers, "shared", keep_old=keep_old, check="never")
    target.run(make_new, True)
    with pytest.raises(WeightSyncError, match="ReplaceableWeights"):
        sync()
    target.run(check, 0.0)
    target.run(make_new, False)
    sync()
    target.run(check, 1.0)


def test_syncs_from_two_sources_take_turns_too(process_workers: Callable[..., Any]) -> None:
    first, target, one = synced(process_workers, "shared")
    second = process_workers("other", Net, [(20.0,)])
    other = WeightSync(second, target, transport="gloo", timeout=60.0)
    for version in range(1, 4):
        first.run(fill_all, 10.0 * version)
        one()
        target.run(check, 10.0 * version)
        under_way = other.start()
        first.run(fill_all, 10.0 * version + 5)
        one()
        target.run(check, 10.0 * version + 5)
        under_way.result()
        target.run(check, 20.0)


def test_a_sync_within_a_process_copies() -> None:
    source, target = Net(3.0), Net(0.0)
    before = target.layer.weight.data_ptr()
    began = time.monotonic()
    with WeightSync(source, target) as sync:
        sync()
        check(target, 3.0)
    assert target.layer.weight.data_ptr() == before
    assert time.monotonic() - began < 60
