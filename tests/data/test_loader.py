"""The loader's own face: options, collate and info, epochs, one process of a launcher."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler, default_collate

from twinkle_data import Batch, DataLoader, DeviceMeshSampler, NotResumableError
from twinkle_mesh import DeviceMesh, use_rank

MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2)


def test_collate_gets_a_batch_and_info_tells_the_same() -> None:
    loader: DataLoader[torch.Tensor] = DataLoader(
        list(range(10)), batch_size=4, shuffle=True, drop_last=False, collate_fn=default_collate
    )
    assert loader.info is None
    for tensor in loader:
        info = loader.info
        assert info is not None
        assert tensor.tolist() == info.indices
        assert (info.epoch, info.position + info.rows) in ((0, loader.position), (0, 10))
    assert info is not None
    assert (info.rows, info.valid) == (2, [True, True])


def test_a_batch_of_a_rank_is_marked_as_its_own() -> None:
    assert not next(iter(DataLoader(list(range(30)), batch_size=8, device_mesh=MESH))).sharded
    with use_rank(3):
        batch = next(iter(DataLoader(list(range(30)), batch_size=8, device_mesh=MESH)))
    assert batch.sharded
    assert batch.indices == [4, 5, 6, 7]


def test_the_last_batch_is_filled_up_on_ranks_only() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4)
    last = []
    for rank in range(4):
        with use_rank(rank):
            loader = DataLoader(list(range(13)), batch_size=8, drop_last=False, device_mesh=mesh)
            assert len(loader) == 2
            last.append(list(loader)[-1])
    assert [list(batch) for batch in last] == [[8, 9], [10, 11], [12, 12], [12, 12]]
    assert [batch.valid for batch in last] == [[True, True], [True, True], [True, False], [False, False]]
    assert [len(batch) for batch in DataLoader(list(range(13)), batch_size=8, drop_last=False, device_mesh=mesh)] == [
        8,
        5,
    ]
    assert [len(batch) for batch in DataLoader(list(range(13)), batch_size=8)] == [8], "drop_last=True is the default"


def test_a_loop_that_another_one_moved_is_refused() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(list(range(24)), batch_size=4)
    first, second = iter(loader), iter(loader)
    assert next(second).position == 0
    with pytest.raises(RuntimeError, match="another loop"):
        next(first)
    loader.set_epoch(2)
    with pytest.raises(RuntimeError, match="begin a new loop"):
        next(second)
    with pytest.raises(ValueError, match="epoch=-1"):
        loader.set_epoch(-1)


def test_launched_processes_divide_over_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    batch = next(iter(DataLoader(list(range(24)), batch_size=8)))
    assert (batch.indices, batch.sharded) == ([4, 5, 6, 7], True)
    peers = DataLoader(list(range(24)), batch_size=8, device_mesh=DeviceMesh.from_sizes(tp_size=2))
    assert next(iter(peers)).indices == list(range(8))
    with pytest.raises(ValueError, match="device_mesh has 4 ranks"):
        DataLoader(list(range(24)), batch_size=8, device_mesh=DeviceMesh.from_sizes(dp_size=4))
    with pytest.raises(ValueError, match="device_mesh has 4 ranks"):
        list(DeviceMeshSampler([[1]], DeviceMesh.from_sizes(dp_size=4)))
    with pytest.raises(ValueError, match="multiple of the 2 data ranks"):
        DataLoader(list(range(24)), batch_size=7)


def test_whole_numbers_of_numpy() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(
        list(range(24)), batch_size=np.int64(4), seed=np.uint32(3), shuffle=True
    )
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["seed"], state["epoch"], state["position"]) == (3, 0, 4)
    with pytest.raises(TypeError, match="float"):
        DataLoader(list(range(24)), batch_size=4.0)  # type: ignore[call-overload]  # on purpose


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 0, "max_tokens": 9}, "batch_size=0"),
        ({"batch_size": 7, "device_mesh": MESH}, "use 6 or 8"),
        ({"batch_size": 4, "seed": -1}, "seed=-1 is outside"),
        ({"batch_size": 4, "on_error": "ignore"}, "on_error='ignore'"),
        ({"batch_size": 31}, "an epoch of 30 samples has no step"),
        ({"batch_size": 4, "replicate": True, "device_mesh": MESH}, "leave device_mesh="),
        ({"batch_size": 4, "shuffle": True, "sampler": [1]}, "leave shuffle= out"),
        ({"batch_size": 4, "max_tokens": 9, "on_error": "skip"}, "max_tokens=9"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(list(range(30)), **options)


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="num_worker"):
        DataLoader([1], batch_size=1, num_worker=1)  # type: ignore[call-overload]  # on purpose


def test_an_empty_dataset_has_no_step() -> None:
    for drop_last in (True, False):
        with pytest.raises(ValueError, match="has no step"):
            DataLoader([], batch_size=4, drop_last=drop_last)


def test_a_dataset_that_grew_is_an_error_at_the_next_loop() -> None:
    rows, column = list(range(8)), np.arange(8).tolist()
    datasets: list[tuple[Any, Any]] = [(rows, rows), ({"a": column, "b": column}, column)]
    for dataset, grows in datasets:
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=4)
        assert len(list(loader)) == 2
        grows.append(100)
        with pytest.raises(ValueError, match="new loader"):
            list(loader)
        grows.pop()
        assert len(list(loader)) == 2


def test_a_sampler_gives_the_order() -> None:
    weights = torch.arange(1.0, 33.0).tolist()
    data = list(range(100, 132))
    samplers: list[Any] = [
        SequentialSampler(data),
        RandomSampler(data),
        WeightedRandomSampler(weights, 32),
        list(range(31, -1, -1)),
    ]
    mesh = DeviceMesh.from_sizes(dp_size=2)
    for sampler in samplers:
        whole: DataLoader[Any] = DataLoader(data, batch_size=8, sampler=sampler)
        epochs = [[batch.indices for batch in whole] for _ in range(2)]
        assert all(len(batch) == 8 for epoch in epochs for batch in epoch)
        parts = []
        for rank in range(2):
            torch.manual_seed(rank)
            with use_rank(rank):
                own: DataLoader[Any] = DataLoader(data, batch_size=8, sampler=sampler, device_mesh=mesh)
                parts.append([batch.indices for batch in own])
        assert [left + right for left, right in zip(*parts, strict=True)] == epochs[0]
        cut: DataLoader[Any] = DataLoader(data, batch_size=4, sampler=sampler)
        list(cut)
        next(iter(cut))
        again: DataLoader[Any] = DataLoader(data, batch_size=4, sampler=sampler)
        again.load_state_dict(json.loads(json.dumps(cut.state_dict())))
        assert [index for batch in again for index in batch.indices] == [i for batch in epochs[1] for i in batch][4:]
    generator: Any = RandomSampler(data, generator=torch.Generator())
    with pytest.raises(NotResumableError, match="generator"):
        DataLoader(data, batch_size=4, sampler=generator).state_dict()
