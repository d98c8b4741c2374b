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

from twinkle_data import DeviceMeshSampler, StateMismatchError
from twinkle_data.order.tails import Tail
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
@pytest.mark.parametrize("tail", ["drop", "short", "pad"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_cut_by_data_rank(length: int, tail: Tail, drop_last: bool) -> None:
    def make() -> DeviceMeshSampler:
        return DeviceMeshSampler(BatchSampler(RandomSampler(range(length)), 8, drop_last), MESH, tail=tail)

    ranks = on_every_rank(make)
    assert len({len(steps) for steps in ranks}) == 1
    joined = [[index for part in parts for index in part] for parts in zip(*ranks, strict=True)]
    assert list(make()) == joined, "the driver sees the global batches"
    seen = [index for step in joined for index in step]
    if tail != "pad":
        assert len(set(seen)) == len(seen)
    full = length // 8 * 8
    expected = {"drop": length if length % 8 % 4 == 0 else full, "short": length, "pad": length}[tail]
    assert len(set(seen)) == (full if drop_last else expected)


@pytest.mark.parametrize("tail", [None, "drop"])
def test_batches_that_do_not_divide_are_refused(tail: Tail | None) -> None:
    batches = BatchSampler(SequentialSampler(range(60)), 6, False)
    with pytest.raises(ValueError, match=r"data_world_size=4.* 4 or 8"):
        DeviceMeshSampler(batches, MESH, tail=tail)
    ragged: Any = [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9, 10]]
    with use_rank(0), pytest.raises(ValueError, match="batches of 3, not a multiple"):
        list(DeviceMeshSampler(ragged, MESH, tail=tail))
    for other in ("short", "pad"):
        ranks = on_every_rank(lambda other=other: DeviceMeshSampler(batches, MESH, tail=other))
        assert {index for steps in ranks for step in steps for index in step} == set(range(60))


def test_no_row_is_lost_without_a_word() -> None:
    for make in (
        lambda: DeviceMeshSampler(BatchSampler(SequentialSampler(range(21)), 8, False), MESH),
        lambda: DeviceMeshSampler(SequentialSampler(range(21)), MESH),
        lambda: DeviceMeshSampler([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]], MESH),
    ):
        ranks = on_every_rank(make)
        flat = [step if isinstance(step, list) else [step] for steps in ranks for step in steps]
        assert {len(step) for step in flat} <= {1, 2}
        assert {index for step in flat for index in step} in (set(range(21)), set(range(11)))
    unknown = DeviceMeshSampler([[0, 1, 2, 3], [4, 5, 6]], MESH, tail="drop")
    assert len(unknown) == 2
    with use_rank(0), pytest.raises(ValueError, match="batches of 3, not a multiple"):
        list(unknown)


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_single_indices_are_dealt_out(tail: Tail) -> None:
    ranks = on_every_rank(lambda: DeviceMeshSampler(SequentialSampler(range(10)), MESH, tail=tail))
    expected = {
        "drop": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "pad": [[0, 4, 8], [1, 5, 9], [2, 6, 8], [3, 7, 9]],
    }
    assert ranks == expected[tail]
    driver = DeviceMeshSampler(SequentialSampler(range(10)), MESH, tail=tail)
    assert len(driver) == len(list(driver)) == 4 * len(ranks[0])


def test_ranks_agree_on_random_samplers_and_epochs_differ() -> None:
    """Without `set_epoch`, further passes have the orders of the next epochs, also after a resume at any step."""
    weights = torch.arange(1.0, 33.0).tolist()
    samplers: list[Any] = [
        lambda: RandomSampler(range(32)),
        lambda: WeightedRandomSampler(weights, 32),
        lambda: BatchSampler(WeightedRandomSampler(weights, 32), 8, False),
    ]
    for make in samplers:
        sampler = DeviceMeshSampler(make(), MESH)
        passes = [list(sampler) for _ in range(3)]
        for epoch, steps in enumerate(passes):
            for _ in range(2):
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


@pytest.mark.parametrize("batched", [False, True])
def test_a_loaded_position_is_skipped_to_once(batched: bool) -> None:
    inner = BatchSampler(SequentialSampler(range(16)), 4, False) if batched else SequentialSampler(range(16))
    whole = list(DeviceMeshSampler(inner, MESH))
    before = DeviceMeshSampler(inner, MESH)
    loop = iter(before)
    begun = [next(loop), next(loop)]
    sampler = DeviceMeshSampler(inner, MESH)
    sampler.load_state_dict(before.state_dict())
    assert len(sampler) == len(whole) - 2
    assert begun + list(sampler) == whole
    assert sampler.state_dict() == {**before.state_dict(), "epoch": 1, "position": 0}
    assert len(sampler) == len(whole)
    assert list(sampler) == list(sampler) == whole


@pytest.mark.parametrize("tail", [None, "drop"])
@pytest.mark.parametrize("length", [16, 18])
def test_the_driver_resumes_within_a_group_of_ranks(length: int, tail: Tail | None) -> None:
    whole = list(DeviceMeshSampler(RandomSampler(range(length)), MESH, tail=tail))
    for taken in range(1, min(length, len(whole))):
        before = DeviceMeshSampler(RandomSampler(range(length)), MESH, tail=tail)
        loop = iter(before)
        begun = [next(loop) for _ in range(taken)]
        after = DeviceMeshSampler(RandomSampler(range(length)), MESH, tail=tail)
        after.load_state_dict(before.state_dict())
        assert len(after) == len(whole) - taken
        assert begun + list(after) == whole


def test_two_passes_that_begin_together_have_one_order() -> None:
    for make in (lambda: RandomSampler(range(30)), lambda: BatchSampler(RandomSampler(range(30)), 8, False)):
        sampler = DeviceMeshSampler(make(), MESH)
        expected = list(sampler)
        sampler.set_epoch(0)
        first, second = iter(sampler), iter(sampler)
        assert list(first) == expected
        assert list(second) == expected


def test_what_was_delivered_can_be_said() -> None:
    sampler = DeviceMeshSampler(BatchSampler(SequentialSampler(range(32)), 8, False), MESH)
    loader = DataLoader(TensorDataset(torch.arange(32)), batch_sampler=sampler, num_workers=1)
    loop = iter(loader)
    next(loop)
    assert sampler.state_dict(delivered=1)["position"] == 1
    assert sampler.state_dict()["position"] > 1
    del loop
    assert (sampler.state_dict(delivered=4)["epoch"], sampler.state_dict(delivered=4)["position"]) == (1, 0)


def test_iter_has_no_side_effect() -> None:
    sampler = DeviceMeshSampler(BatchSampler(RandomSampler(range(32)), 8, False), MESH)
    iter(sampler)
    first = iter(sampler)
    next(first)
    iter(sampler)
    assert sampler.state_dict()["position"] == 0
    assert len(list(sampler)) == 4


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
    assert inner.epochs == [3]
    assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(TypeError, match="batched=True"):
        list(DeviceMeshSampler(inner, MESH))
    assert list(DeviceMeshSampler([[0, 1, 2, 3]], MESH)) == [[0, 1, 2, 3]]


def test_errors() -> None:
    with pytest.raises(ValueError, match='tail="short" over single indices'):
        DeviceMeshSampler(SequentialSampler(range(10)), MESH, tail="short")
    with pytest.raises(ValueError, match="tail='cut'"):
        DeviceMeshSampler(SequentialSampler(range(10)), MESH, tail="cut")  # type: ignore[arg-type]  # on purpose
    state = DeviceMeshSampler(SequentialSampler(range(10)), MESH).state_dict()
    with pytest.raises(StateMismatchError, match="seed=0 over 10 elements"):
        DeviceMeshSampler(SequentialSampler(range(11)), MESH).load_state_dict(state)
    sampler = DeviceMeshSampler(SequentialSampler(range(10)), MESH)
    changes: list[Any] = [{"epoch": -1}, {"epoch": True}, {"position": 11}, {"position": "1"}, {"version": 2}]
    wrong: Any
    for wrong in (None, {}, *({**state, **change} for change in changes)):
        with pytest.raises(StateMismatchError):
            sampler.load_state_dict(wrong)
    for epoch in (-1, True, 1.0):
        with pytest.raises((TypeError, ValueError), match="epoch"):
            sampler.set_epoch(epoch)  # type: ignore[arg-type]  # on purpose


def test_what_is_divided_already_is_refused() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    divided = DistributedSampler(list(range(16)), num_replicas=2, rank=1)  # type: ignore[arg-type, var-annotated]  # a list
    for inner in (divided, BatchSampler(divided, 4, False)):
        with pytest.raises(ValueError, match="divided already"):
            DeviceMeshSampler(inner, mesh)
        assert len(DeviceMeshSampler(inner, DeviceMesh.from_sizes(dp_size=1))) > 0
    alone = DistributedSampler(list(range(16)), num_replicas=1, rank=0)  # type: ignore[arg-type, var-annotated]  # a list
    assert len(DeviceMeshSampler(alone, mesh)) == 16


def test_a_state_belongs_to_the_samplers_indices() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    makes: list[Any] = [
        lambda x: SubsetRandomSampler([*range(x, 8), *range(x)]),
        lambda x: BatchSampler(SubsetRandomSampler([*range(x, 8), *range(x)]), 4, False),
        lambda x: WeightedRandomSampler([1.0, 2.0, float(x), 4.0], 8),
        lambda x: RandomSampler([x, 1, 2, 3], num_samples=8),
        lambda x: [[x, 1], [2, 3]],
    ]
    for make in makes:
        state = json.loads(json.dumps(DeviceMeshSampler(make(1), mesh).state_dict()))
        DeviceMeshSampler(make(1), mesh).load_state_dict(state)
        with pytest.raises(StateMismatchError, match="other indices"):
            DeviceMeshSampler(make(3), mesh).load_state_dict(state)
