"""A sync after one that worked: fewer messages, and what has changed since is noticed as before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle_ray.weights import ManifestError, ReplaceableWeights, WeightSync

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_ray.weights.shards.shard import Weights

pytestmark = pytest.mark.processes


class Model:
    def __init__(self, fill: float, replaceable: bool = False) -> None:
        self.replaceable = replaceable
        self.tensors: dict[str, torch.Tensor] = {
            name: torch.nn.Parameter(torch.full((40, 7), fill), requires_grad=False) for name in ("a", "b")
        }
        self.versions: list[int] = []
        self.optimizers: list[torch.optim.Optimizer] = []

    def weights(self) -> Weights:
        return ReplaceableWeights(self.tensors) if self.replaceable else self.tensors

    def on_weights(self, version: int) -> None:
        self.versions.append(version)


def fill(model: Model, value: float) -> None:
    for tensor in model.tensors.values():
        tensor.fill_(value)


def values(model: Model) -> set[float]:
    return {float(edge) for tensor in model.tensors.values() for edge in tensor.aminmax()}


def move(model: Model) -> None:
    """The same values in other memory."""
    model.tensors = {name: tensor.clone() for name, tensor in model.tensors.items()}


def cast(model: Model, dtype: torch.dtype) -> None:
    model.tensors = {name: tensor.to(dtype) for name, tensor in model.tensors.items()}


def train(model: Model) -> None:
    model.optimizers.append(torch.optim.SGD(model.tensors.values(), 0.1))


def be_busy(model: Model, seconds: float) -> None:
    time.sleep(seconds)


def published(model: Model) -> list[int]:
    return model.versions


@pytest.fixture(scope="module")
def sides(process_workers: Callable[..., Any]) -> tuple[Any, Any]:
    return process_workers("trainer", Model, [(0.0,)]), process_workers("sampler", Model, [(0.0,), (0.0,)])


@pytest.fixture
def sync(sides: tuple[Any, Any]) -> Any:
    source, target = sides
    with WeightSync(source, target, timeout=60.0, silence=2.0) as made:
        for value in (1.0, 2.0):
            source.run(fill, value)
            made()
        yield made


def test_it_takes_two_messages_in_a_row_to_each_rank(sides: tuple[Any, Any], sync: WeightSync) -> None:
    source, target = sides
    source.run(fill, 3.0)
    before = source.number, target.number
    sync()
    assert (source.number - before[0], target.number - before[1]) == (2, 3)  # commit and finalize are sent together
    assert target.run(values) == [{3.0}] * 2
    assert [versions[-3:] for versions in target.run(published)] == [[1, 2, 3]] * 2


@pytest.mark.parametrize("side", [0, 1])
def test_other_memory_is_noticed(sides: tuple[Any, Any], sync: WeightSync, side: int) -> None:
    source, target = sides
    sides[side].run(move)
    source.run(fill, 4.0)
    sync()
    assert target.run(values) == [{4.0}] * 2


def test_other_shards_are_planned_anew(sides: tuple[Any, Any], sync: WeightSync) -> None:
    source, target = sides
    source.run(cast, torch.float64)
    with pytest.raises(ManifestError, match="float64"):
        sync()
    assert target.run(values) == [{2.0}] * 2
    target.run(cast, torch.float64)
    source.run(fill, 5.0)
    sync()
    assert target.run(values) == [{5.0}] * 2
    for side in sides:
        side.run(cast, torch.float32)
    sync()
    assert target.run(values) == [{5.0}] * 2


def test_a_target_that_trains_by_now_is_noticed(process_workers: Callable[..., Any]) -> None:
    source, target = process_workers("trainer", Model, [(1.0,)]), process_workers("sampler", Model, [(0.0,)])
    with WeightSync(source, target, timeout=60.0) as sync:
        sync()
        target.run(train)
        source.run(fill, 2.0)
        with pytest.raises(ManifestError, match="trains its weights"):
            sync()
        assert target.run(values) == [{1.0}]


@pytest.mark.parametrize("side", [0, 1])
def test_a_rank_that_is_busy_before_it_is_not_silent(sides: tuple[Any, Any], sync: WeightSync, side: int) -> None:
    source, target = sides
    source.run(fill, 6.0)
    busy = sides[side].start(be_busy, [(3.0,)] * sides[side].size)  # longer than the silence
    sync()
    busy.results()
    assert target.run(values) == [{6.0}] * 2


def test_a_restarted_rank_is_noticed(sides: tuple[Any, Any], sync: WeightSync) -> None:
    source, target = sides
    target.restart(1)
    source.run(fill, 7.0)
    sync()
    assert target.run(values) == [{7.0}] * 2
    source.restart(0)
    source.run(fill, 8.0)
    sync()
    assert target.run(values) == [{8.0}] * 2


def test_two_syncs_into_one_target_take_turns(process_workers: Callable[..., Any], sides: tuple[Any, Any]) -> None:
    source, target = sides
    other = process_workers("other", Model, [(0.0,)])
    with WeightSync(source, target, timeout=60.0) as one, WeightSync(other, target, timeout=60.0) as two:
        for value in (1.0, 2.0, 3.0, 4.0):
            source.run(fill, value)
            other.run(fill, -value)
            one()
            assert target.run(values) == [{value}] * 2
            two()
            assert target.run(values) == [{-value}] * 2


def test_memory_that_is_replaced_is_never_written_under_its_owner(process_workers: Callable[..., Any]) -> None:
    source, target = process_workers("trainer", Model, [(1.0,)]), process_workers("sampler", Model, [(0.0, True)] * 2)
    with WeightSync(source, target, timeout=60.0) as sync:
        for value in range(1, 6):
            source.run(fill, float(value))
            sync()
            assert target.run(values) == [{float(value)}] * 2
            source.run(fill, -1.0)
            assert target.run(values) == [{float(value)}] * 2
