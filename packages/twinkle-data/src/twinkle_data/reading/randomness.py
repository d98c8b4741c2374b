"""The randomness of samples: the draws of a sample are a function of (seed, epoch, index), in every process.

While user code reads a step, the loader has the global generators of `random`, numpy and torch (CPU): it seeds them
before every sample, and restores the program's states after the step. A process has one generator of each library, so
loaders in several threads take turns.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from twinkle_data.option_checks import true_or_false
from twinkle_data.order.permutation import derive, derive_each
from twinkle_data.reading.generators import LIBRARIES, GlobalGenerators, find_rng_use
from twinkle_data.reading.written_again import WrittenAgain, WrittenAgainError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

_DREW_LATE = (
    "samples that were read together (index {index} and others, in epoch {epoch}) drew from the global generator of "
    "{drew}, and those before them did not. What these drew depends on the batch; from here on samples are read one by "
    "one. Leave __getitems__ out, or draw from np.random.default_rng(sample_seed()) in __getitem__"
)

_turn = threading.RLock()


def _new_turn() -> None:
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    # The child of a fork has no thread that would release the lock.
    os.register_at_fork(after_in_child=_new_turn)


class _Reading:
    """Samples that are read one after the other; the sample at `len(done)` is being read."""

    __slots__ = ("done", "epoch", "generators", "indices", "other", "seed")

    def __init__(self, seed: int, epoch: int, indices: Sequence[int], generators: GlobalGenerators | None) -> None:
        self.seed = seed
        self.epoch = epoch
        self.indices = indices
        self.generators = generators  # None where they are left alone
        self.done: list[Any] = []
        self.other: int | None = None  # seed of another sample that is read before its turn

    def key(self) -> int:
        """The seed of the sample that is being read."""
        if self.other is not None:
            return self.other
        return derive(self.seed, self.epoch, self.indices[len(self.done)])


_reading: ContextVar[_Reading | None] = ContextVar("twinkle_sample", default=None)


def sample_seed() -> int:
    """The 64-bit seed of the sample that is being read, for your own generator.

    `np.random.default_rng(sample_seed())` in a `__getitem__` draws the same numbers on every rank and in
    every loader process.

    Raises:
        RuntimeError: No loader is reading a single sample here.
    """
    reading = _reading.get()
    if reading is None:
        raise RuntimeError("sample_seed() has a value only while a DataLoader reads a sample")
    return reading.key()


def epoch_of_reading() -> int | None:
    """The epoch of the sample that is being read; None where no loader reads one."""
    reading = _reading.get()
    return None if reading is None else reading.epoch


def seed_again() -> None:
    """Seed the generators for the sample that is being read, after code that is not this sample's may have drawn."""
    _seed_as(None)


def seed_for(*parts: int) -> None:
    """Seed the generators for another sample, which is read before its turn; `seed_again` ends that.

    Args:
        parts: What its seed derives from, with the loader's seed and the epoch.
    """
    reading = _reading.get()
    if reading is not None:
        _seed_as(derive(reading.seed, reading.epoch, *parts))


def seed_this() -> None:
    """Seed the generators for the sample whose code runs next: the one that is being read, or that of `seed_for`."""
    reading = _reading.get()
    if reading is not None and reading.generators is not None:
        reading.generators.seed(reading.key())


def _seed_as(other: int | None) -> None:
    reading = _reading.get()
    if reading is not None:
        reading.other = other
        seed_this()


class Randomness:
    """Seeds the global generators for each sample; picklable.

    Args:
        seed: The loader's seed.
        libraries: Libraries whose global generators are seeded; None does not touch any.
    """

    def __init__(self, seed: int, libraries: Sequence[str] | None = LIBRARIES) -> None:
        self.seed = seed
        self._libraries = libraries
        self._generators = None if libraries is None else GlobalGenerators(libraries)
        self._held = False
        # By dataset: whether its samples draw, and so are read one by one.
        self._one_by_one: dict[int, bool] = {}
        self._written_again = WrittenAgain()

    def __getstate__(self) -> tuple[int, Sequence[str] | None]:
        return self.seed, self._libraries

    def __setstate__(self, state: tuple[int, Sequence[str] | None]) -> None:
        Randomness.__init__(self, *state)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Read a step in this block; the program's generators are restored after it."""
        generators = self._generators
        if generators is None:
            yield
            return
        turn = _turn
        with turn:
            generators.take()
            self._held = True
            try:
                yield
            finally:
                self._held = False
                generators.put_back()

    def wait(self, seconds: float) -> None:
        """Sleep; meanwhile the program has its generators back, and other loaders can read."""
        if not self._held or self._generators is None:
            time.sleep(seconds)
            return
        turn = _turn
        self._generators.put_back()
        turn.release()
        try:
            time.sleep(seconds)
        finally:
            turn.acquire()
            self._generators.take()

    def each(
        self, epoch: int, indices: Sequence[int], read: Callable[[int], Any], failed: Callable[[Exception], Any]
    ) -> list[Any]:
        """Read samples one by one, each under its own randomness.

        Args:
            epoch: The epoch.
            indices: The samples.
            read: Reads one.
            failed: Makes the value for a sample whose reading raised.

        Raises:
            WrittenAgainError: A sample was changed while the ones after it were read.
        """
        if indices and self._libraries and self._generators is not None:
            keys = iter(derive_each(derive(self.seed, epoch), np.array(indices, dtype=np.uint64)))
            read = _seeding(read, keys, self._generators.seeders())
        reading = _Reading(self.seed, epoch, indices, self._generators)
        done, watch = reading.done, self._written_again if len(indices) > 1 else None
        if watch is not None:
            watch.begin()
        token = _reading.set(reading)
        try:
            for index in indices:
                try:
                    done.append(read(index))
                except WrittenAgainError:
                    raise
                except Exception as error:  # the loader's policy decides; the samples after it are read
                    done.append(failed(error))
                if watch is not None and len(done) == 1:
                    watch.keep(done[0])
        finally:
            _reading.reset(token)
        if watch is not None:
            watch.check(done[1:], "the dataset")
            watch.end()
        return done

    def together(
        self,
        epoch: int,
        indices: Sequence[int],
        read: Callable[[Sequence[int]], list[Any]],
        failed: Callable[[Exception], Any],
        *,
        dataset: int = 0,
    ) -> list[Any]:
        """Read samples together, or one by one where they draw, so that each has its own randomness.

        The first sample of a dataset is read alone, which shows whether its samples draw.

        Args:
            epoch: The epoch.
            indices: The samples.
            read: Reads several.
            failed: Makes the value for samples whose reading raised.
            dataset: Key of their dataset, where several are mixed.
        """
        if self._generators is None or not self._libraries:
            return _at_once(indices, read, failed)
        done: list[Any] = []
        if dataset not in self._one_by_one:
            done = self.each(epoch, indices[:1], partial(self._probe, dataset, read), failed)
        left = indices[len(done) :]
        if self._one_by_one.get(dataset, True) or not left:
            return done + self.each(epoch, left, lambda index: read([index])[0], failed)
        self._generators.seed(derive(self.seed, epoch, left[0]))
        with find_rng_use(self._libraries) as drew:
            done += _at_once(left, read, failed)
        if drew:
            self._one_by_one[dataset] = True
            warnings.warn(_DREW_LATE.format(index=left[0], epoch=epoch, drew=" and ".join(drew)), RuntimeWarning, 2)
        return done

    def _probe(self, dataset: int, read: Callable[[Sequence[int]], list[Any]], index: int) -> Any:
        with find_rng_use(self._libraries or ()) as drew:
            (sample,) = read([index])
        self._one_by_one[dataset] = bool(drew)
        return sample

    def once(self, parts: tuple[int, ...], job: Callable[[], T]) -> T:
        """Run a job with the generators seeded once.

        Args:
            parts: The seed is derived from these.
            job: What to run.
        """
        if self._libraries and self._generators is not None:
            self._generators.seed(derive(*parts))
        return job()


def seeded_libraries(sample_seeds: object) -> tuple[str, ...] | None:
    """Read the option `sample_seeds`: the libraries that are seeded for each sample; None leaves all of them alone.

    Raises:
        TypeError: It is neither a bool nor a collection of names.
        ValueError: A name is not one of `LIBRARIES`.
    """
    if not isinstance(sample_seeds, (tuple, list, set, frozenset)) or any(type(one) is not str for one in sample_seeds):
        return LIBRARIES if true_or_false("sample_seeds", sample_seeds, f"names such as {LIBRARIES[:1]}") else None
    unknown = [name for name in sample_seeds if name not in LIBRARIES]
    if unknown:
        known = ", ".join(map(repr, LIBRARIES))
        raise ValueError(f"sample_seeds={sample_seeds!r} names {unknown[0]!r}; use names of {known}, or True for all")
    return tuple(name for name in LIBRARIES if name in sample_seeds)


def _seeding(
    read: Callable[[int], Any], keys: Iterator[int], seeders: Sequence[Callable[[int], object]]
) -> Callable[[int], Any]:
    """Return `read` with the generators seeded before each sample."""

    def seeded(index: int) -> Any:
        key = next(keys)
        for seed in seeders:
            seed(key)
        return read(index)

    return seeded


def _at_once(
    indices: Sequence[int], read: Callable[[Sequence[int]], list[Any]], failed: Callable[[Exception], Any]
) -> list[Any]:
    try:
        return read(indices)
    except Exception as error:  # reading them one by one shows which sample it was
        return [failed(error)] * len(indices)
