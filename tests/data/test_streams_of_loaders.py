"""A stream over a DataLoader: each sample once, with the loader's own state inside the stream's."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_data import DataLoader
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = [DeviceGroup("makers", 4, "CPU"), DeviceGroup("loaders", 2, "CPU")]
DATA = list(range(1000, 1050))


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int]) -> list[int]:
        return [row + 1 for row in rows]


@pytest.fixture
def maker() -> Iterator[Maker]:
    with session("threads", groups=GROUPS):
        yield on("makers", DeviceMesh.from_sizes(dp_size=4)).create(Maker)


def loader(batch_size: int = 8, **options: Any) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size=batch_size, shuffle=True, seed=3, drop_last=False, **options)


def checked(batches: Any, epoch: int, most: int | None = None) -> list[int]:
    """The indices of the delivered samples; each value is that of its index."""
    indices: list[int] = []
    for batch in islice(batches, most):
        info = batches.info
        assert get(batch) == [DATA[index] + 1 for index in info.indices]
        assert info.epoch == epoch
        indices += info.indices
    return indices


@pytest.mark.parametrize("ahead", [0, 20])
@pytest.mark.parametrize("order", ["source", "arrival"])
def test_epochs_are_those_of_the_loader(maker: Maker, ahead: int, order: Any) -> None:
    expected = [[index for batch in epoch for index in batch.indices] for plain in [loader()] for epoch in [plain] * 2]
    with stream(loader(), maker.make, rows=6, ahead=ahead, order=order) as batches:
        for epoch in range(2):
            indices = checked(batches, epoch)
            assert sorted(indices) == list(range(50))
            assert order == "arrival" or indices == expected[epoch]


@pytest.mark.parametrize("ahead", [0, 20])
@pytest.mark.parametrize("order", ["source", "arrival"])
@pytest.mark.parametrize("taken", [0, 1, 5, 8, 9, 13])
def test_a_resume_with_another_batch_size_gives_each_sample_once(
    maker: Maker, ahead: int, order: Any, taken: int
) -> None:
    epoch, left = divmod(taken, 9)  # nine batches of six in an epoch
    with stream(loader(), maker.make, rows=6, ahead=ahead, order=order) as batches:
        for number in range(epoch):
            checked(batches, number)
        before = checked(batches, epoch, left)
        state = json.loads(json.dumps(batches.state_dict()))
    with stream(loader(batch_size=4), maker.make, rows=6, ahead=ahead, order=order) as batches:
        batches.load_state_dict(state)
        after = checked(batches, epoch)
    assert sorted(before + after) == list(range(50))


@pytest.mark.parametrize("ahead", [0, 20])
def test_lazy_batches_of_a_group_of_loaders(maker: Maker, ahead: int) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    with stream(loader(device_mesh=mesh, remote_group="loaders"), maker.make, rows=6, ahead=ahead) as batches:
        assert sorted(checked(batches, 0)) == list(range(50))


@pytest.mark.parametrize("ahead", [0, 20])
def test_fillers_of_a_padded_tail_stay_out(maker: Maker, ahead: int) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    source = DataLoader(DATA[:45], batch_size=8, drop_last=False, device_mesh=mesh, remote_group="loaders")
    with stream(source, maker.make, ahead=ahead) as batches:
        assert checked(batches, 0) == list(range(45))
