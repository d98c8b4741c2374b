"""Randomness of samples: a function of (seed, epoch, index), and nobody else's generator is moved."""

import random
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import mtrand

from twinkle_data import Batch, DataLoader, Shards, sample_seed
from twinkle_data.reading.generators import GlobalGenerators
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


class Seeding(Augmented):
    """Moves the generators to places of its own, each time for the sample behind it."""

    def __getitem__(self, index: int) -> Draws:
        drawn = super().__getitem__(index)
        random.seed(3)
        torch.manual_seed(3)
        mtrand.set_bit_generator(np.random.PCG64(3))
        return drawn


def epoch_of(dataset: object, **options: Any) -> dict[int, Draws]:
    options = {"batch_size": 4, "seed": 5} | options
    return {sample[0]: sample for batch in DataLoader(dataset, **options) for sample in batch}


@pytest.mark.parametrize("kind", [Augmented, AtOnce, Rarely, Keyed, Seeding])
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


class Counted(Rarely):
    """Counts how often each sample is read."""

    def __init__(self) -> None:
        self.read: Counter[int] = Counter()

    def __getitem__(self, index: int) -> Draws:
        self.read[index] += 1
        return super().__getitem__(index)


class CountedAtOnce(Counted):
    def __getitems__(self, indices: list[int]) -> list[Draws]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Counted, CountedAtOnce])
@pytest.mark.filterwarnings("ignore:samples that were read together")
def test_a_sample_is_read_once(kind: type[Counted]) -> None:
    dataset = kind()
    epoch_of(dataset)
    assert set(dataset.read.values()) == {1}
    assert len(dataset.read) == 24


def test_samples_read_together_that_draw_late_are_told_of() -> None:
    class Late(CountedAtOnce):
        pass

    with pytest.warns(RuntimeWarning, match=r"index 20 and others.*drew from the global generator of random and numpy"):
        epoch_of(Late())


class Batches(Augmented):
    """Reads several samples at once and draws nothing."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __getitems__(self, indices: list[int]) -> list[Draws]:
        self.sizes.append(len(indices))
        return [(index, 0.0, 0.0, 0.0) for index in indices]


def test_what_draws_nothing_is_read_together() -> None:
    dataset = Batches()
    epoch_of(dataset, batch_size=12)
    assert dataset.sizes == [1, 11, 12], "the first sample shows that none is drawn"
    left_alone = Batches()
    epoch_of(left_alone, batch_size=12, sample_seeds=False)
    assert left_alone.sizes == [12, 12]


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
    shards = Shards(lambda shard, offset: (Augmented()[place] for place in range(offset, 24)), 1)
    assert epoch_of(shards) == streamed


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


@pytest.mark.parametrize("kind", [Augmented, AtOnce, Rarely, Seeding])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "sample_seeds": False}])
def test_the_callers_generators_stay_where_they_are(kind: type[Augmented], options: dict[str, Any]) -> None:
    seed_all()
    expected = [draws() for _ in range(6)]
    seed_all()
    assert [draws() for _ in DataLoader(kind(), batch_size=4, **options)] == expected


@contextmanager
def another_kind() -> Iterator[None]:
    theirs = mtrand.get_bit_generator()
    mtrand.set_bit_generator(np.random.PCG64(1))
    try:
        yield
    finally:
        mtrand.set_bit_generator(theirs)


def test_a_bit_generator_of_another_kind_stays_where_it_is() -> None:
    with another_kind():
        expected = [np.random.randn() for _ in range(7)]
    with another_kind():
        seen = [np.random.randn(), *(np.random.randn() for _ in DataLoader(Augmented(), batch_size=4))]
    assert seen == expected


def test_nothing_is_moved_where_no_code_of_the_users_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a generator was touched")

    monkeypatch.setattr(random, "seed", refuse)
    monkeypatch.setattr(np.random, "seed", refuse)
    monkeypatch.setattr(mtrand, "set_bit_generator", refuse)
    rows = torch.arange(24)
    for dataset in ([*range(24)], np.arange(24), rows, {"a": rows}, torch.utils.data.TensorDataset(rows)):
        for collate in (None, torch.utils.data.default_collate):
            assert len(list(DataLoader(dataset, batch_size=4, collate_fn=collate))) == 6
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
    with pytest.raises(RuntimeError, match="while a DataLoader reads a sample"):
        sample_seed()


LATE_IMPORTS = """
import sys
from twinkle_data import DataLoader

class Late:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        import random, numpy, torch
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

assert "torch" not in sys.modules
print([list(batch) for batch in DataLoader(Late(), batch_size=4)])
"""


class Early(Augmented):
    def __getitem__(self, index: int) -> Any:
        return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.mark.slow
def test_libraries_that_are_imported_later_are_seeded_as_those_imported_before() -> None:
    told = subprocess.run([sys.executable, "-c", LATE_IMPORTS], capture_output=True, text=True, check=True, timeout=300)
    loader: DataLoader[Any] = DataLoader(Early(), batch_size=4)
    batches = [list(batch) for batch in loader]
    assert told.stdout.strip() == str(batches[:2])


class Nested(Augmented):
    """Goes through a loader of its own while a sample is read."""

    def __getitem__(self, index: int) -> Draws:
        inner = epoch_of(Augmented(), batch_size=12)
        assert inner == REFERENCE
        return super().__getitem__(index)


REFERENCE = epoch_of(Augmented())


def test_a_loader_inside_a_sample() -> None:
    assert epoch_of(Nested()) == REFERENCE


def test_loaders_in_threads_take_turns() -> None:
    seen: list[dict[int, Draws]] = []
    threads = [threading.Thread(target=lambda: seen.append(epoch_of(Augmented()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [REFERENCE] * 4


class Meeting(Augmented):
    """Each sample waits until another loader reads one at the same time."""

    def __init__(self, parties: int) -> None:
        self.met = threading.Barrier(parties, timeout=30)

    def __getitem__(self, index: int) -> Draws:
        self.met.wait()
        return index, 0.0, 0.0, 0.0


def test_loaders_without_seeds_read_at_the_same_time() -> None:
    dataset = Meeting(4)
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.append(len(epoch_of(dataset, sample_seeds=False)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [24] * 4


def test_other_loaders_read_while_one_waits_to_try_again() -> None:
    waiting, done = threading.Event(), threading.Event()

    class Failing(Augmented):
        def __getitem__(self, index: int) -> Draws:
            if index == 3 and not done.is_set():
                waiting.set()
                raise ConnectionError("not yet")
            return super().__getitem__(index)

    seen: list[dict[int, Draws]] = []
    first = threading.Thread(target=lambda: seen.append(epoch_of(Failing(), retries=20, backoff_s=0.2)))
    first.start()
    assert waiting.wait(30)
    assert epoch_of(Augmented()) == REFERENCE
    done.set()
    first.join(60)
    assert seen == [REFERENCE]


@contextmanager
def drawing_thread() -> Iterator[None]:
    stop, begun = threading.Event(), threading.Event()

    def draw() -> None:
        while not stop.is_set():
            random.random()
            begun.set()

    thread = threading.Thread(target=draw)
    thread.start()
    assert begun.wait(30)
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def test_a_thread_that_draws_meanwhile_is_told_of() -> None:
    with (
        drawing_thread(),
        pytest.warns(RuntimeWarning, match="another thread draws from the global generator of random"),
    ):
        epoch_of(Augmented())
    with drawing_thread(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert epoch_of(Augmented(), num_workers=1) == REFERENCE
        epoch_of(Augmented(), sample_seeds=False)
        assert len(list(DataLoader(list(range(24)), batch_size=4))) == 6


class Slow(Augmented):
    def __getitem__(self, index: int) -> Draws:
        time.sleep(0.02)
        return super().__getitem__(index)


def test_a_thread_that_begins_to_draw_later_is_told_of_too() -> None:
    loader: DataLoader[Batch[Draws]] = DataLoader(Slow(), batch_size=4)
    for _ in range(2):
        next(loader)
    with drawing_thread(), pytest.warns(RuntimeWarning, match="another thread draws from the global generator of ran"):
        batches = [next(loader) for _ in range(4)]  # a busy machine may not let the thread run during one
    assert len(batches) == 4


class BetweenSteps(torch.utils.data.Dataset[list[str]]):
    """Is a loader inside a loader process: what draws between its steps is another thread's, here the sample itself."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> list[str]:
        generators = GlobalGenerators()
        told = []
        for draw in (lambda: None, random.random, np.random.random, np.random.normal, lambda: torch.rand(())):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                generators.take()
                generators.put_back()
                draw()
                generators.take()
                generators.put_back()
            told.append(" ".join(str(warning.message).split(" while ")[0] for warning in caught))
        return told


def test_a_loader_process_finds_a_draw_between_any_two_steps() -> None:
    said = "another thread draws from the global generator of "
    (told,) = torch.utils.data.DataLoader(BetweenSteps(), batch_size=None, num_workers=1)
    assert told == ["", f"{said}random", f"{said}numpy", f"{said}numpy", f"{said}torch"]
    assert BetweenSteps()[0] == [""] * 5  # in the loop's own process the program draws between steps
