"""Randomness of samples: a function of (seed, epoch, index), and nobody else's generator is moved."""

import random
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import mtrand

from twinkle_data import Batch, DataLoader, sample_seed
from twinkle_data.generators import Generator, Numpy, Python, Torch, Watch, global_generators
from twinkle_mesh import DeviceMesh, use_rank

Draws = tuple[int, float, float, float]


class Augmented(torch.utils.data.Dataset[Draws]):
    """Draws from every global generator."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Draws:
        return index, random.random(), float(np.random.normal()), float(torch.rand(()))


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


def epoch_of(dataset: object, **options: Any) -> dict[int, Draws]:
    options = {"batch_size": 4, "seed": 5} | options
    return {sample[0]: sample for batch in DataLoader(dataset, **options) for sample in batch}


@pytest.mark.parametrize("kind", [Augmented, AtOnce, Rarely, Keyed])
def test_draws_depend_on_the_sample_alone(kind: type[Augmented]) -> None:
    reference = epoch_of(kind())
    assert len({draws[1:] for draws in reference.values()}) == (5 if kind is Rarely else 24)
    assert epoch_of(kind(), batch_size=12, shuffle=True) == reference
    assert epoch_of(kind(), num_workers=1, batch_size=8) == reference
    random.seed(99)
    assert epoch_of(kind()) == reference


def test_draws_change_with_seed_and_epoch() -> None:
    loader: DataLoader[Batch[Draws]] = DataLoader(Augmented(), batch_size=24, seed=5)
    first, second = next(loader), next(iter(loader))
    other = epoch_of(Augmented(), seed=6)
    drawn = {draws[1] for batch in (first, second, other.values()) for draws in batch}
    assert len(drawn) == 3 * 24


def test_peers_draw_alike_and_data_ranks_apart() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    seen = []
    for rank in range(4):
        with use_rank(rank):
            seen.append(epoch_of(Augmented(), device_mesh=mesh))
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert not seen[0].keys() & seen[2].keys()


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_a_resumed_run_draws_the_same(options: dict[str, Any]) -> None:
    whole = list(DataLoader(Augmented(), batch_size=4, shuffle=True))
    loader: DataLoader[Batch[Draws]] = DataLoader(Augmented(), batch_size=4, shuffle=True, **options)
    next(loader)
    again: DataLoader[Batch[Draws]] = DataLoader(Augmented(), batch_size=4, shuffle=True)
    again.load_state_dict(loader.state_dict())
    assert list(again) == whole[1:]


def collate_drawing(batch: Batch[int]) -> tuple[int, float]:
    return sum(batch), random.random() if sum(batch) > 50 else 0.0


def test_collate_draws_by_step() -> None:
    runs = [
        list(DataLoader(list(range(24)), batch_size=4, collate_fn=collate_drawing, num_workers=workers))
        for workers in (0, 1)
    ]
    assert runs[0] == runs[1]
    assert len({draw for _, draw in runs[0]}) == 4, "zero, and another draw for each of three batches"


@pytest.mark.parametrize("kind", [Augmented, AtOnce])
def test_the_callers_generators_stay_where_they_are(kind: type[Augmented]) -> None:
    def draws() -> tuple[float, ...]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    expected = [draws() for _ in range(6)]
    seed()
    assert [draws() for _ in DataLoader(kind(), batch_size=4)] == expected
    seed()
    assert [draws() for _ in DataLoader(kind(), batch_size=4, num_workers=1)] == expected


def test_seeding_can_be_left_out() -> None:
    random.seed(3)
    first = epoch_of(Augmented(), sample_seeds=False)
    assert epoch_of(Augmented(), sample_seeds=False) != first


def test_unseeded_processes_draw_anew_in_every_epoch() -> None:
    loader: DataLoader[Batch[Draws]] = DataLoader(Augmented(), batch_size=12, num_workers=1, sample_seeds=False)
    first, second = list(loader), list(loader)
    assert not {draws[1] for batch in first for draws in batch} & {draws[1] for batch in second for draws in batch}


def test_sample_seed_speaks_only_while_a_sample_is_read() -> None:
    with pytest.raises(RuntimeError, match="while a DataLoader reads a sample"):
        sample_seed()


def test_loaders_in_threads_take_turns() -> None:
    expected = epoch_of(Augmented())
    seen: list[dict[int, Draws]] = []
    threads = [threading.Thread(target=lambda: seen.append(epoch_of(Augmented()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [expected] * 4


@pytest.mark.parametrize("generator", global_generators(), ids=lambda one: type(one).__name__)
def test_a_look_changes_with_every_draw(generator: Generator) -> None:
    draws: dict[str, Callable[[], object]] = {
        "Python": random.random,
        "Numpy": np.random.random,
        "Torch": lambda: torch.rand(()),
    }
    draw = draws[type(generator).__name__]
    watch = Watch([generator])
    state = generator.save()
    try:
        generator.seed(7)
        before = watch.look()
        assert watch.look() == before
        for _ in range(1400):
            draw()
            after = watch.look()
            assert after != before
            before = after
    finally:
        generator.restore(state)


def blind(generator: Generator) -> Generator:
    """The same, as where its memory is not known."""
    generator.spots = lambda: None  # type: ignore[method-assign]  # what it tells there
    return generator


OTHER_DRAWS: dict[str, tuple[type[Generator], Callable[[], object]]] = {
    "random": (Python, random.random),
    "gauss, from the store every second time": (Python, lambda: random.gauss(0.0, 1.0)),
    "shuffle": (Python, lambda: random.shuffle([1, 2, 3])),
    "random.seed": (Python, lambda: random.seed(random.randrange(1 << 40))),
    "numpy's random": (Numpy, np.random.random),
    "numpy's randn, from the store every second time": (Numpy, np.random.randn),
    "numpy's permutation": (Numpy, lambda: np.random.permutation(5)),
    "numpy's seed, an array": (Numpy, lambda: np.random.seed([random.randrange(1 << 30), 3])),
    "numpy's seed": (Numpy, lambda: np.random.seed(random.randrange(1 << 30))),
    "another bit generator": (Numpy, lambda: mtrand.set_bit_generator(np.random.MT19937())),
    "a bit generator of another kind": (Numpy, lambda: mtrand.set_bit_generator(np.random.PCG64())),
}


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("kind", "draw"), OTHER_DRAWS.values(), ids=OTHER_DRAWS)
def test_no_draw_of_the_others_goes_unseen(kind: type[Generator], draw: Callable[[], object], slow: bool) -> None:
    generator = kind()
    assert generator.spots() is not None
    watch = Watch([blind(generator) if slow else generator])
    state, theirs = random.getstate(), mtrand.get_bit_generator()
    try:
        for _ in range(5):
            before = watch.look()
            assert watch.look() == before
            draw()
            assert watch.look() != before
    finally:
        random.setstate(state)
        mtrand.set_bit_generator(theirs)


def test_a_bit_generator_of_another_kind_is_watched_as_well() -> None:
    theirs = mtrand.get_bit_generator()
    watch = Watch([Numpy()])
    try:
        mtrand.set_bit_generator(np.random.PCG64(3))
        looks = [watch.look()]
        for _ in range(3):
            np.random.randn()
            looks.append(watch.look())
        assert all(old != new for old, new in pairwise(looks))
    finally:
        mtrand.set_bit_generator(theirs)


def test_a_normal_deviate_in_store_outlasts_a_loader() -> None:
    np.random.seed(5)
    expected = [np.random.randn() for _ in range(4)]
    np.random.seed(5)
    seen = [np.random.randn()]
    epoch_of(Augmented())
    assert seen + [np.random.randn() for _ in range(3)] == expected


TORCH_DRAWS: dict[str, Callable[[], object]] = {
    "rand": lambda: torch.rand(3),
    "rand of 624 words": lambda: torch.rand(624),
    "randn, from the store every second time": lambda: torch.randn(1),
    "randn of doubles": lambda: torch.randn(1, dtype=torch.float64),
    "randn at once": lambda: torch.randn(64),
    "randint": lambda: torch.randint(9, (1,)),
    "randperm": lambda: torch.randperm(5),
    "bernoulli": lambda: torch.full((2,), 0.5).bernoulli(),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(4)),
    "a seed": lambda: torch.manual_seed(random.randrange(1 << 40)),
}


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("draw", TORCH_DRAWS.values(), ids=TORCH_DRAWS)
def test_no_draw_of_torch_goes_unseen(draw: Callable[[], object], slow: bool) -> None:
    watch = Watch([blind(Torch()) if slow else Torch()])
    with torch.random.fork_rng(devices=[]):
        for _ in range(5):
            before = watch.look()
            assert watch.look() == before
            draw()
            assert watch.look() != before


def test_the_memory_of_this_torch_is_known() -> None:
    assert Torch().spots() is not None
