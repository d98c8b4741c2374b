"""Weights that a component takes in `on_weights`: a failed sync restores nothing, and nobody takes what it has left."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle_ray.weights import StagedWeights, WeightSync, WeightSyncError
from twinkle_ray.weights.controller.controller import donate

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 1 << 19  # floats; 2 MiB


class Model:
    def __init__(self, value: float) -> None:
        self.tensors = {name: torch.full((ROWS,), value) for name in ("a", "b")}

    def weights(self) -> Any:
        return self.tensors


class Engine:
    """An engine that copies what was staged."""

    def __init__(self, keeps: bool = True) -> None:
        self.keeps = keeps
        self.staged = StagedWeights({name: torch.zeros(ROWS) for name in ("a", "b")}, {"base": "x"})
        self.own: dict[str, float] = {}

    def weights(self) -> StagedWeights[torch.Tensor]:
        return self.staged if self.keeps else StagedWeights(dict(self.staged))

    def on_weights(self, version: int) -> None:
        self.own = {name: float(tensor[0]) for name, tensor in self.staged.items()}


def large_memory(engine: Engine) -> int:
    """Bytes of large tensors of this process, beyond the pages of the source that it maps."""
    gc.collect()
    with open("/proc/self/maps") as file:
        mapped = [line.split()[0].split("-") for line in file if "twinkle-weights" in line]
    spans = [range(int(start, 16), int(stop, 16)) for start, stop in mapped]
    found = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and one.nbytes >= 1 << 20:
            storage = one.untyped_storage()
            if not any(storage.data_ptr() in span for span in spans):
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def fill(model: Model, value: float) -> None:
    for tensor in model.tensors.values():
        tensor.fill_(value)


def fail_at_commit(engine: Engine) -> None:
    from twinkle_ray.weights.worker import endpoint

    commit: Any = endpoint.commit

    def failing(*arguments: Any) -> None:
        endpoint.commit = commit
        raise MemoryError("at commit")

    failing.__module__, failing.__qualname__ = commit.__module__, commit.__qualname__
    endpoint.commit = failing  # type: ignore[assignment]  # a fault


def state(engine: Engine) -> tuple[dict[str, float], list[str]]:
    return engine.own, sorted(engine.staged.unsettled)


@pytest.mark.processes
def test_nothing_is_put_aside_and_what_a_failed_sync_leaves_is_not_taken(process_workers: Callable[..., Any]) -> None:
    source, target = process_workers("trainer", Model, [(1.0,)]), process_workers("sampler", Engine, [(), ()])
    back = process_workers("back", Engine, [()])
    with WeightSync(source, target, transport="gloo", timeout=60.0) as link:
        assert link() == 1
    with WeightSync(source, target, transport="shared", timeout=60.0) as sync:
        assert sync() == 1
        donate(target, back, 1, sync._options)
        assert back.run(state) == [({"a": 1.0, "b": 1.0}, [])]
        source.run(fill, 2.0)
        target.call(1, fail_at_commit)
        with pytest.raises(WeightSyncError, match="at commit"):
            sync()
        assert target.run(state) == [({"a": 1.0, "b": 1.0}, ["a", "b"]), ({"a": 1.0, "b": 1.0}, [])]
        with pytest.raises(WeightSyncError, match="never took"):
            donate(target, back, 1, sync._options)
        with (
            WeightSync(source, target, transport="shared", timeout=60.0, select=["a"]) as part,
            pytest.raises(WeightSyncError, match="sync these first"),
        ):
            part()
        assert target.run(state)[0] == ({"a": 1.0, "b": 1.0}, ["a", "b"])
        assert sync() == 2
        assert target.run(large_memory) == [2 * 4 * ROWS] * 2  # the two tensors, and no copy of them
        assert sync.delivery is not None and sync.delivery.changed == ("a", "b")
        assert target.run(state) == [({"a": 2.0, "b": 2.0}, [])] * 2
        donate(target, back, 2, sync._options)
        assert back.run(state) == [({"a": 2.0, "b": 2.0}, [])]


def test_another_object_at_each_call_is_an_error() -> None:
    with pytest.raises(WeightSyncError, match="StagedWeights"):
        WeightSync(Model(1.0), Engine(keeps=False))()
