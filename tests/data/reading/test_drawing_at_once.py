"""Loaders that read at the same time, and threads that draw meanwhile: each sample's draws stay its own."""

import random
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tests.data.reading.augmented import Augmented, Draws, epoch_of

from twinkle_data import Batch, DataLoader
from twinkle_data.reading.generators import GlobalGenerators


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
        pytest.warns(RuntimeWarning, match="another thread .*random"),
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
    with drawing_thread(), pytest.warns(RuntimeWarning, match="another thread .*ran"):
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
