"""The loader's own face: options, collate and info, batch_sampler, epochs, one process of a launcher."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset, default_collate

from twinkle_data import Batch, DataLoader
from twinkle_mesh import DeviceMesh, use_rank

MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2)


def test_collate_gets_a_batch_and_info_tells_the_same() -> None:
    loader: DataLoader[torch.Tensor] = DataLoader(
        list(range(10)), batch_size=4, shuffle=True, tail="pad", collate_fn=default_collate
    )
    assert loader.info is None
    for tensor in loader:
        info = loader.info
        assert info is not None
        assert tensor.tolist() == info.indices
        assert (info.epoch, info.position + info.rows) in ((0, loader.position), (0, 10))
    assert info is not None
    assert (info.rows, info.valid) == (2, [True, True])


def test_the_batch_sampler_yields_the_same_batches() -> None:
    for tail in ("drop", "short", "pad"):
        loader: DataLoader[Batch[int]] = DataLoader(
            list(range(22)), batch_size=8, shuffle=True, tail=tail, device_mesh=MESH
        )
        for rank in range(4):
            with use_rank(rank):
                loader.set_epoch(rank)
                sampler = loader.batch_sampler
                assert len(sampler) == len(list(sampler)) == len(loader)
                indices = list(sampler)
                assert loader.position == 0, "going over it moves nothing"
                assert [batch.indices for batch in loader] == indices


def test_torchs_loader_takes_the_batch_sampler() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(torch.arange(22), batch_size=8, shuffle=True)
    theirs = TorchLoader(TensorDataset(torch.arange(22)), batch_sampler=loader.batch_sampler, num_workers=0)
    assert [batch.tolist() for (batch,) in theirs] == [batch.indices for batch in loader]


def test_set_epoch_goes_to_a_front() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(list(range(30)), batch_size=8, shuffle=True)
    next(loader)
    loader.set_epoch(0)
    assert loader.position == 8, "it is in that epoch already"
    loader.set_epoch(3)
    third = [batch.indices for batch in loader]
    again: DataLoader[Batch[int]] = DataLoader(list(range(30)), batch_size=8, shuffle=True)
    orders = [[batch.indices for batch in again] for _ in range(4)]
    assert orders[3] == third
    assert len({str(order) for order in orders}) == 4
    with pytest.raises(ValueError, match="epoch=-1"):
        loader.set_epoch(-1)


def test_a_batch_of_a_rank_is_marked_as_its_own() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(list(range(30)), batch_size=8, device_mesh=MESH)
    assert not next(iter(loader)).sharded
    with use_rank(3):
        batch = next(iter(loader))
    assert batch.sharded
    assert batch.indices == [12, 13, 14, 15]


def test_a_launched_process_takes_its_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    loader: DataLoader[Batch[int]] = DataLoader(list(range(30)), batch_size=8, device_mesh=MESH)
    assert next(loader).indices == [4, 5, 6, 7]


def test_short_may_leave_a_rank_without_rows() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4)
    rows = []
    for rank in range(4):
        with use_rank(rank):
            loader: DataLoader[Batch[int]] = DataLoader(list(range(10)), batch_size=8, tail="short", device_mesh=mesh)
            rows.append([list(batch) for batch in loader])
    assert [steps[-1] for steps in rows] == [[8], [9], [], []]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 7, "device_mesh": MESH}, "6 or 8 would do"),
        ({"batch_size": 4, "seed": -1}, "seed=-1 is outside"),
        ({"batch_size": 4, "tail": "cut"}, "tail='cut' is not one of 'drop', 'short', 'pad'"),
        ({"batch_size": 31}, "an epoch of 30 samples has no step"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(list(range(30)), **options)
