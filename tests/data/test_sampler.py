"""DeviceMeshSampler: any torch sampler, divided so that every rank takes as many steps as any other."""

import json
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from twinkle_data import DeviceMeshSampler, NotResumableError, StateMismatchError
from twinkle_mesh import DeviceMesh, use_rank

MESH = DeviceMesh.from_sizes(dp_size=2, fsdp_size=2, tp_size=2)


def on_every_rank(make: Any, mesh: DeviceMesh = MESH) -> list[list[Any]]:
    """What each data rank is given, peers compared."""
    by_rank: dict[int, list[Any]] = {}
    for rank in range(mesh.world_size):
        torch.manual_seed(rank)
        with use_rank(rank):
            sampler = make()
            promised = len(sampler)
            steps = list(sampler)
            assert len(steps) == promised
            assert by_rank.setdefault(mesh.data_rank(), steps) == steps
    return [by_rank[rank] for rank in range(mesh.data_world_size)]


@pytest.mark.parametrize("length", [16, 21, 22, 23])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch", [8, 6])
def test_batches_are_cut_by_data_rank(length: int, drop_last: bool, batch: int) -> None:
    def make() -> DeviceMeshSampler:
        return DeviceMeshSampler(BatchSampler(RandomSampler(range(length)), batch, drop_last), MESH)

    ranks, whole = on_every_rank(make), list(make())
    for step, parts in zip(whole, zip(*ranks, strict=True), strict=True):
        joined = [index for part in parts for index in part]
        assert joined[: len(step)] == step, "the driver sees the global batches"
        assert len(joined) == max(len(step), 4) and all(parts), "a short batch is filled up with rows of its own"
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    seen = {index for step in whole for index in step}
    assert len(seen) == (length // batch * batch if drop_last else length)


def test_single_indices_are_dealt_out() -> None:
    ranks = on_every_rank(lambda: DeviceMeshSampler(SequentialSampler(range(10)), MESH))
    assert ranks == [[0, 4, 8], [1, 5, 9], [2, 6, 8], [3, 7, 9]]
    driver = DeviceMeshSampler(SequentialSampler(range(10)), MESH)
    assert len(driver) == len(list(driver)) == 10


def test_ranks_agree_on_random_samplers_and_epochs_differ() -> None:
    """Without `set_epoch`, further passes have the orders of the next epochs, also after a resume at any step."""
    weights = torch.arange(1.0, 33.0).tolist()
    samplers: list[Any] = [
        lambda: RandomSampler(range(32)),
        lambda: SubsetRandomSampler(range(32)),
        lambda: WeightedRandomSampler(weights, 32),
        lambda: BatchSampler(WeightedRandomSampler(weights, 32), 8, False),
    ]
    for make in samplers:
        sampler = DeviceMeshSampler(make(), MESH)
        passes = [list(sampler) for _ in range(3)]
        for epoch, steps in enumerate(passes):
            sampler.set_epoch(epoch)
            assert list(sampler) == steps
            assert steps not in passes[:epoch]
        whole = [step for steps in passes for step in steps]
        for taken in range(0, len(whole), 5):
            cut, after = DeviceMeshSampler(make(), MESH), DeviceMeshSampler(make(), MESH)
            begun = list(islice(chain.from_iterable(iter(cut) for _ in range(3)), taken))
            after.load_state_dict(json.loads(json.dumps(cut.state_dict())))
            rest = islice(chain.from_iterable(iter(after) for _ in range(3)), len(whole) - taken)
            assert begun + list(rest) == whole
        on_every_rank(lambda make=make: DeviceMeshSampler(make(), MESH))


def test_resume_on_another_number_of_ranks() -> None:
    small = DeviceMesh.from_sizes(dp_size=2)
    with use_rank(0):
        before = DeviceMeshSampler(RandomSampler(range(32)), MESH, seed=4)
        loop = iter(before)
        taken = [next(loop) for _ in range(3)]
        state = before.state_dict()
    assert state["position"] == 12
    rest = []
    for rank in range(2):
        with use_rank(rank):
            after = DeviceMeshSampler(RandomSampler(range(32)), small, seed=4)
            after.load_state_dict(state)
            assert len(after) == 10
            rest.append(list(after))
    whole = list(DeviceMeshSampler(RandomSampler(range(32)), MESH, seed=4))
    assert taken == whole[:12:4]
    assert [index for pair in zip(*rest, strict=True) for index in pair] == whole[12:]


def test_what_was_delivered_can_be_said() -> None:
    sampler = DeviceMeshSampler(BatchSampler(SequentialSampler(range(32)), 8, False), MESH)
    loader = DataLoader(TensorDataset(torch.arange(32)), batch_sampler=sampler, num_workers=1)
    loop = iter(loader)
    next(loop)
    assert sampler.state_dict(delivered=1)["position"] == 1
    del loop


def test_the_programs_generators_stay_where_they_are() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3).tolist()
    torch.manual_seed(5)
    assert [float(torch.rand(())) for _ in islice(DeviceMeshSampler(RandomSampler(range(8)), MESH), 3)] == expected


class Listening:
    """A batch sampler that is not torch's."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1, 2, 3], [4, 5, 6, 7])


def test_samplers_that_are_not_torchs() -> None:
    inner = Listening()
    sampler = DeviceMeshSampler(inner, MESH, batched=True)
    sampler.set_epoch(3)
    assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert inner.epochs == [3]
    with pytest.raises(TypeError, match="batched=True"):
        list(DeviceMeshSampler(inner, MESH))
    assert list(DeviceMeshSampler([[0, 1, 2, 3]], MESH)) == [[0, 1, 2, 3]]


def test_states_of_something_else_are_refused() -> None:
    state = DeviceMeshSampler(SequentialSampler(range(10)), MESH).state_dict()
    with pytest.raises(StateMismatchError, match="length: saved 10, here 11"):
        DeviceMeshSampler(SequentialSampler(range(11)), MESH).load_state_dict(state)
    own = DeviceMeshSampler(RandomSampler(range(16), generator=torch.Generator()), MESH)
    assert len(list(own)) == 16
    with pytest.raises(NotResumableError, match="generator"):
        own.state_dict()


def test_what_is_divided_already_is_refused() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    divided = DistributedSampler(list(range(16)), num_replicas=2, rank=1)  # type: ignore[arg-type, var-annotated]  # a list
    for inner in (divided, BatchSampler(divided, 4, False)):
        with pytest.raises(ValueError, match="divided already"):
            DeviceMeshSampler(inner, mesh)
        assert len(DeviceMeshSampler(inner, DeviceMesh.from_sizes(dp_size=1))) > 0
