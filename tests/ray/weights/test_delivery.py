"""What a sync proves: replicas that agree, target names that do not overwrite each other, values that are in place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

import twinkle_remote
from twinkle_mesh import DeviceGroup
from twinkle_ray.weights import ManifestError, Shard, WeightDelivery, WeightSync, WeightSyncError, worker
from twinkle_ray.weights.transport import packing
from twinkle_remote import current_worker, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


class Named:
    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = dict(tensors)

    def weights(self) -> dict[str, Any]:
        return self.tensors


@remote_class()
class Rank:
    """One rank's tensors, as a list by rank gives them."""

    def __init__(self, by_rank: Sequence[Mapping[str, Any]]) -> None:
        given = by_rank[current_worker().rank or 0]
        self.tensors = {
            name: Shard(value.tensor.clone(), value.global_shape, value.offset)
            if isinstance(value, Shard)
            else value.clone()
            for name, value in given.items()
        }
        for name, value in given.items():  # what is one tensor stays one
            same = next(other for other in given if _tensor(given[other]).data_ptr() == _tensor(value).data_ptr())
            self.tensors[name] = self.tensors[same]

    def weights(self) -> dict[str, Any]:
        return self.tensors

    @remote_function(dispatch="all", lazy_collect=False)
    def values(self) -> dict[str, list[float]]:
        return {name: _tensor(value).flatten().tolist() for name, value in self.tensors.items()}

    @remote_function(dispatch="all", lazy_collect=False)
    def add(self, names: Sequence[str], amount: float, rank: int | None = None) -> None:
        if rank in (None, current_worker().rank):
            for name in names:
                _tensor(self.tensors[name]).add_(amount)


def _tensor(value: Any) -> Tensor:
    found = value.tensor if isinstance(value, Shard) else value
    assert isinstance(found, Tensor)
    return found


@pytest.fixture
def threads() -> Iterator[None]:
    groups = [DeviceGroup("actor", 3, "CPU"), DeviceGroup("sampler", 2, "CPU")]
    with twinkle_remote.session("threads", groups=groups):
        yield


def pair(source: Sequence[Mapping[str, Any]], target: Sequence[Mapping[str, Any]]) -> tuple[Rank, Rank]:
    make: Any = Rank
    return make(source, remote_group="actor"), make(target, remote_group="sampler")


def values_of(component: Rank) -> list[dict[str, list[float]]]:
    found: Any = component.values()
    return list(found)


def zeros(**shapes: Any) -> dict[str, Tensor]:
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


@pytest.mark.usefixtures("threads")
def test_replicas_that_differ_are_refused_and_nothing_moves() -> None:
    base = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4), "c": torch.ones(2)}
    other = {**base, "a": base["a"].clone(), "c": torch.full((2,), 2.0)}
    other["a"][1, 2] += 1e-6
    actor, sampler = pair([base, other, base], [zeros(a=(2, 3), b=4, c=2)] * 2)
    sync = WeightSync(actor, sampler)
    message = (
        "replicas of the source differ, and a sync would mix them:\n"
        "  'a' at [0:2, 0:3]: ranks 0, 2 / 1 hold different values\n"
        "  'c' at [0:2]: ranks 0, 2 / 1 hold different values\n"
    )
    with pytest.raises(ManifestError, match=re.escape(message)) as caught:
        sync()
    assert re.search(r"the source is .*\bRank\b", str(caught.value))
    assert (sync.version, sync.delivery) == (0, None)
    assert not any(any(row) for values in values_of(sampler) for row in values.values())
    actor.add(["a"], 0.0)
    with pytest.raises(ManifestError, match="'a' at"):
        sync()
    assert WeightSync(actor, sampler, check="never")() == 1
    assert WeightSync(actor, sampler, select="b")() == 1


@pytest.mark.usefixtures("threads")
def test_blocks_that_overlap_are_compared_where_they_do() -> None:
    whole = torch.arange(8.0)
    parts = [
        {"w": Shard(whole[:5].clone(), (8,), (0,))},
        {"w": Shard(whole[3:].clone(), (8,), (3,))},
        {"w": Shard(whole[2:4].clone(), (8,), (2,))},
    ]
    actor, sampler = pair(parts, [zeros(w=8)] * 2)
    assert WeightSync(actor, sampler)() == 1
    assert [values["w"] for values in values_of(sampler)] == [whole.tolist()] * 2
    parts[1]["w"].tensor[1] = 9
    actor, sampler = pair(parts, [zeros(w=8)] * 2)
    with pytest.raises(ManifestError, match=re.escape("'w' at [4:5]: ranks 0 / 1 hold different values")):
        WeightSync(actor, sampler)()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("check", ["first", "always"])
def test_replicas_that_part_later_are_found_on_request(check: Any) -> None:
    base = {"w": torch.ones(4)}
    actor, sampler = pair([base] * 3, [zeros(w=4)] * 2)
    sync = WeightSync(actor, sampler, check=check)
    assert sync() == 1
    actor.add(["w"], 1.0, 2)
    if check == "first":
        assert sync() == 2
        return
    with pytest.raises(ManifestError, match="ranks 0, 1 / 2"):
        sync()
    assert [values["w"] for values in values_of(sampler)] == [[1.0] * 4] * 2
    assert sync.version == 1
    actor.add(["w"], 1.0, 0)
    actor.add(["w"], 1.0, 1)
    assert sync() == 2


@pytest.mark.usefixtures("threads")
def test_a_sync_tells_what_it_delivered() -> None:
    start = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4), "none": torch.zeros(0)}
    halves = [{**start, "a": Shard(start["a"][i : i + 1].clone(), (2, 3), (i, 0))} for i in (0, 1, 1)]
    actor, sampler = pair(halves, [{**zeros(a=(2, 3), none=0), "b": torch.ones(4)}] * 2)
    sync = WeightSync(actor, sampler, check="always")
    assert sync.delivery is None
    assert sync() == 1 and sync.delivery == WeightDelivery(1, 40)
    assert sync.start().result() == 2 and sync.delivery == WeightDelivery(2, 40)


def test_other_values_than_the_source_has_are_an_error_before_any_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Named({"a": torch.ones(4), "b": torch.ones(2)}), Named(zeros(a=4, b=2))
    sync = WeightSync(source, target)
    stage_out = worker.stage_out

    def spoiled(instance: Any, *args: Any) -> Any:
        def changed(slots: Any, blocks: Any, **options: Any) -> Any:
            parts: list[Tensor] = packing.packed(slots, blocks, **options)
            parts[0].add_(1)
            return parts

        with monkeypatch.context() as patch:
            patch.setattr(f"{worker.__name__}.packed", changed)
            return stage_out(instance, *args)

    monkeypatch.setattr(worker, "stage_out", spoiled)
    with pytest.raises(WeightSyncError, match="'b' on rank 0"):
        sync()
    assert sync.version == 0 and not any(tensor.any() for tensor in target.tensors.values())


def tied(**pairs: str) -> Callable[[], dict[str, Tensor]]:
    def build() -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, same in pairs.items():
            tensors[name] = tensors[same] if same in tensors else torch.zeros(4)
        return tensors

    return build


def test_a_target_that_ties_what_the_source_does_not_is_refused() -> None:
    source = Named({"embed": torch.ones(4), "head": torch.full((4,), 2.0)})
    target = Named(tied(embed="", head="embed")())
    message = (
        "'embed' and 'head' are one tensor on rank 0 of the target, and 'embed' and 'head' are two at the "
        "source: tie them there too, or leave one out by rename= to None"
    )
    with pytest.raises(ManifestError, match=re.escape(message)):
        WeightSync(source, target)()
    assert not target.tensors["embed"].any()
    WeightSync(source, target, rename=lambda name: None if name == "head" else name)()
    assert target.tensors["head"].tolist() == [1.0] * 4
    source.tensors["head"] = source.tensors["embed"]
    assert WeightSync(source, target)() == 1


@pytest.mark.usefixtures("threads")
def test_ranks_that_hold_nothing_of_a_tensor_do_not_untie_it() -> None:
    halves = [torch.full((1, 3), float(i)) for i in range(2)]
    source = []
    for i in range(3):
        shard = Shard(halves[i], (2, 3), (i, 0)) if i < 2 else Shard(torch.zeros(0, 3), (2, 3), (2, 0))
        source.append({"embed": shard, "head": shard})
    both = torch.zeros(2, 3)
    actor, sampler = pair(source, [{"embed": both, "head": both}] * 2)
    sync = WeightSync(actor, sampler)
    assert sync() == 1
    assert sync.delivery is not None and sync.delivery.moved == 24
