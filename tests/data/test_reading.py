"""Randomness of samples: a function of (seed, epoch, index), and nobody else's generator is moved."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.augmented import Augmented, Draws, epoch_of
from tests.data.on_ranks import on_ranks

from twinkle_data import BadSampleError, Batch, DataLoader, sample_seed
from twinkle_mesh import DeviceMesh


class AtOnce(Augmented):
    def __getitems__(self, indices: list[int]) -> list[Draws]:
        return [self[index] for index in indices]


class Rarely(Augmented):
    """Draws for a few samples only, so that the first batches show nothing."""

    def __getitem__(self, index: int) -> Draws:
        if index < 20:
            return index, 0.0, 0.0, 0.0
        return super().__getitem__(index)


class Keyed(Augmented):
    def __getitem__(self, index: int) -> Draws:
        rng = np.random.default_rng(sample_seed())
        return index, float(rng.random()), 0.0, 0.0


@pytest.mark.parametrize("kind", [Augmented, AtOnce, Rarely, Keyed])
def test_draws_depend_on_the_sample_alone(kind: type[Augmented]) -> None:
    reference = epoch_of(kind())
    assert len({draws[1:] for draws in reference.values()}) == (5 if kind is Rarely else 24)
    assert epoch_of(kind(), batch_size=12, shuffle=True) == reference
    assert epoch_of(kind(), num_workers=1, batch_size=8) == reference
    random.seed(99)
    assert epoch_of(kind()) == reference
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    shares = on_ranks(mesh, lambda: epoch_of(kind(), device_mesh=mesh))
    assert [len(share) for share in shares] == [12, 12] and shares[0] | shares[1] == reference


def test_draws_change_with_seed_and_epoch() -> None:
    loader: DataLoader[Batch[Draws]] = DataLoader(Augmented(), batch_size=24, seed=5)
    first, second = next(iter(loader)), next(iter(loader))
    other = epoch_of(Augmented(), seed=6)
    drawn = {draws[1] for batch in (first, second, other.values()) for draws in batch}
    assert len(drawn) == 3 * 24


class Counted(Rarely):
    """Counts how often each sample is read."""

    def __init__(self) -> None:
        self.read: Counter[int] = Counter()

    def __getitem__(self, index: int) -> Draws:
        self.read[index] += 1
        return super().__getitem__(index)


def test_a_sample_is_read_once() -> None:
    dataset = Counted()
    epoch_of(dataset)
    assert set(dataset.read.values()) == {1}
    assert len(dataset.read) == 24


def collate_drawing(batch: Batch[int]) -> tuple[int, float]:
    return sum(batch), random.random() if sum(batch) > 50 else 0.0


def test_collate_draws_by_step() -> None:
    runs = [
        list(DataLoader(list(range(24)), batch_size=4, collate_fn=collate_drawing, num_workers=workers))
        for workers in (0, 1)
    ]
    assert runs[0] == runs[1]
    assert len({draw for _, draw in runs[0]}) == 4, "zero, and another draw for each of three batches"


def draws_of_stream() -> Iterator[Draws]:
    for index in range(24):
        yield Augmented()[index]


def test_a_stream_draws_by_position() -> None:
    streamed = epoch_of(draws_of_stream, batch_size=8)
    assert streamed == epoch_of(draws_of_stream, batch_size=4) == epoch_of(Augmented())


def draws() -> tuple[float, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.random()),
        float(np.random.randn()),
        float(torch.rand(())),
    )


def seed_all() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


@pytest.mark.parametrize("kind", [Augmented, AtOnce, Rarely])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "sample_seeds": False}])
def test_the_callers_generators_stay_where_they_are(kind: type[Augmented], options: dict[str, Any]) -> None:
    seed_all()
    expected = [draws() for _ in range(6)]
    seed_all()
    assert [draws() for _ in DataLoader(kind(), batch_size=4, **options)] == expected


def test_nothing_is_moved_where_no_code_of_the_users_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a generator was touched")

    monkeypatch.setattr(random, "seed", refuse)
    monkeypatch.setattr(np.random, "seed", refuse)
    rows = torch.arange(24)
    for dataset in ([*range(24)], np.arange(24), rows, {"a": rows}, torch.utils.data.TensorDataset(rows)):
        assert len(list(DataLoader(dataset, batch_size=4))) == 6
    assert len(epoch_of(Augmented(), sample_seeds=False)) == 24


def test_seeding_can_be_left_out() -> None:
    random.seed(3)
    first = epoch_of(Augmented(), sample_seeds=False)
    assert epoch_of(Augmented(), sample_seeds=False) != first
    assert epoch_of(Keyed(), sample_seeds=False) == epoch_of(Keyed()), "sample_seed() stays"


def test_unseeded_processes_draw_anew_in_every_epoch() -> None:
    loader: DataLoader[Batch[Draws]] = DataLoader(Augmented(), batch_size=12, num_workers=1, sample_seeds=False)
    first, second = list(loader), list(loader)
    assert not {draws[1] for batch in first for draws in batch} & {draws[1] for batch in second for draws in batch}


def test_sample_seed_speaks_only_while_a_sample_is_read() -> None:
    with pytest.raises(RuntimeError, match="reads a sample"):
        sample_seed()


class Bad(Augmented):
    """Every seventh sample cannot be read; the others draw."""

    def __getitem__(self, index: int) -> Draws:
        if index % 7 == 0:
            raise OSError(f"nothing at {index}")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_is_masked_and_another_takes_its_row(workers: int) -> None:
    def rows(size: int) -> list[tuple[int, bool, Draws]]:
        loader: DataLoader[Batch[Draws]] = DataLoader(
            Bad(), batch_size=size, shuffle=True, on_error="skip", num_workers=workers
        )
        return [row for batch in loader for row in zip(batch.indices, batch.valid, batch, strict=True)]

    found = rows(4)
    assert [valid for _, valid, _ in found] == [index % 7 != 0 for index, _, _ in found]
    assert all((sample[0] == index) == valid for index, valid, sample in found)
    assert rows(12) == found, "what takes a row depends on its sample alone"
    whole = epoch_of(Augmented(), seed=0)
    assert all(sample == whole[sample[0]] for _, _, sample in found), "and draws as in its own row"


def test_a_bad_sample_is_an_error_that_does_not_count() -> None:
    loader: DataLoader[Batch[Draws]] = DataLoader(Bad(), batch_size=4)
    loader.load_state_dict({**loader.state_dict(), "position": 4})
    with pytest.raises(BadSampleError, match=r"sample 7 .*OSError: nothing at 7") as caught:
        next(iter(loader))
    assert caught.value.index == 7
    assert isinstance(caught.value.__cause__, OSError)
    assert loader.position == 4


def test_a_dataset_without_a_good_sample_is_an_error() -> None:
    class Torn(Augmented):
        def __getitem__(self, index: int) -> Draws:
            raise StopIteration

    with pytest.raises(BadSampleError, match="nor any of 63 others"):
        list(DataLoader(Torn(), batch_size=4, on_error="skip"))
