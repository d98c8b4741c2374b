"""Memory of devices is given back when a sync is over. Memory of the host stands for it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import Parameter

from twinkle_ray.weights import ReplaceableWeights, WeightSync
from twinkle_ray.weights.worker import held, rank_state

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes

ROWS = 1 << 18  # floats; 1 MiB


class Model:
    def __init__(self, fill: float, replaceable: bool) -> None:
        self.tensors = {name: Parameter(torch.full((ROWS,), fill), requires_grad=False) for name in ("a", "b")}
        self.replaceable = replaceable

    def weights(self) -> Any:
        return ReplaceableWeights(self.tensors) if self.replaceable else self.tensors


def as_device(model: Model) -> None:
    """From now on, this process treats memory of the host as that of a device."""
    for module in (rank_state, held):
        module.is_kept = lambda device: False  # type: ignore[attr-defined]  # imported there


def fill(model: Model, value: float) -> None:
    for tensor in model.tensors.values():
        tensor.fill_(value)


def holds(model: Model) -> set[float]:
    return {float(number) for tensor in model.tensors.values() for number in (tensor.min(), tensor.max())}


def kept(model: Model) -> int:
    """Bytes of large memory in which no tensor of the model lies."""
    gc.collect()
    own = [tensor.data_ptr() for tensor in model.tensors.values()]
    found = {}
    for one in gc.get_objects():
        if isinstance(one, torch.Tensor) and one.nbytes >= 1 << 20:
            start, size = one.untyped_storage().data_ptr(), one.untyped_storage().nbytes()
            if not any(start <= address < start + size for address in own):
                found[start] = size
    return sum(found.values())


@pytest.mark.parametrize("keep_old", [True, False])
@pytest.mark.parametrize("replaceable", [False, True])
def test_staging_on_a_device_ends_with_the_sync(
    process_workers: Callable[..., Any], replaceable: bool, keep_old: bool
) -> None:
    source = process_workers("trainer", Model, [(0.0, False)])
    target = process_workers("sampler", Model, [(0.0, replaceable)])
    target.run(as_device)
    with WeightSync(source, target, transport="gloo", timeout=60.0, keep_old=keep_old) as sync:
        for version in (1, 2, 3):
            source.run(fill, float(version))
            assert sync() == version
            assert target.run(holds) == [{float(version)}]
            assert target.run(kept) == [0]


def test_staging_on_a_host_is_kept(process_workers: Callable[..., Any]) -> None:
    source, target = (
        process_workers("trainer", Model, [(1.0, False)]),
        process_workers("sampler", Model, [(0.0, False)]),
    )
    with WeightSync(source, target, transport="gloo", timeout=60.0) as sync:
        sync()
        assert target.run(kept)[0] >= 2 << 20
