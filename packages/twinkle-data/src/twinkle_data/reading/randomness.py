"""The randomness of one sample: a function of (seed, epoch, index), wherever and by whomever it is read.

While user code reads a sample, the global generators of `random`, numpy and torch (CPU) that it draws from
stand at a state that only the sample determines, and the caller's own states are put back behind it. Seeding
costs microseconds for each sample, so a generator that reading does not draw from is only watched; when it is
drawn from after all, the batch is read again as a first one, with that generator seeded for each sample.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from twinkle_data.generators import Generator, Watch, global_generators
from twinkle_data.order.permutation import derive, derive_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

_PROBED = 4

# The generators belong to the whole process: two loaders in two threads take turns.
_turn = threading.RLock()


def _new_turn() -> None:
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    # A process that is forked while another thread has the turn would never get it.
    os.register_at_fork(after_in_child=_new_turn)


class _Reading:
    """Samples that are being read one after the other: the first that is not done is the one."""

    __slots__ = ("done", "epoch", "indices", "seed")

    def __init__(self, seed: int, epoch: int, indices: Sequence[int]) -> None:
        self.seed = seed
        self.epoch = epoch
        self.indices = indices
        self.done: list[Any] = []


_reading: ContextVar[_Reading | None] = ContextVar("twinkle_sample", default=None)


def sample_seed() -> int:
    """The 64-bit seed of the sample that is being read, for a generator of one's own.

    `np.random.default_rng(sample_seed())` in a `__getitem__` draws the same numbers on every rank and in
    every loader process.

    Raises:
        RuntimeError: No loader is reading a sample here.
    """
    reading = _reading.get()
    if reading is None:
        raise RuntimeError("sample_seed() has a value only while a DataLoader reads a sample")
    return derive(reading.seed, reading.epoch, reading.indices[len(reading.done)])


class Randomness:
    """Lets what a step draws depend on its samples alone; picklable.

    Args:
        seed: The loader's seed.
        enabled: False leaves the global generators alone.
        watch: False seeds all of them for every sample, where nothing may be read twice.
    """

    def __init__(self, seed: int, *, enabled: bool = True, watch: bool = True) -> None:
        self.seed = seed
        self._enabled = enabled
        self._watch = watch
        self._drawn: list[Generator] = []
        # In the first step every generator is seeded, and those that are drawn from are noted here.
        self._noted: list[Generator] | None = None
        self._fresh = enabled
        self._alone = False
        # The others, and what was seen of them behind the last step.
        self._quiet = Watch(())
        self._seen: Any = None

    def __getstate__(self) -> tuple[int, bool, bool]:
        return self.seed, self._enabled, self._watch

    def __setstate__(self, state: tuple[int, bool, bool]) -> None:
        seed, enabled, watch = state
        Randomness.__init__(self, seed, enabled=enabled, watch=watch)

    @property
    def draws(self) -> bool:
        """Whether what reads a step may draw, so that it is run under a seed."""
        return bool(self._drawn)

    def run(self, attempt: Callable[[], T]) -> T:
        """Run what reads a step, which in turn calls `each`, `together` and `once`.

        Args:
            attempt: Must give the same when it is run twice: it is, where it draws for the first time after
                earlier steps did not.
        """
        if not self._enabled:
            return attempt()
        with _turn:
            if not self._fresh:
                # A loader process has its generators to itself: nobody drew since the last step.
                before = self._seen if self._alone and self._seen is not None else self._quiet.look()
                if self._drawn and not self._alone:
                    with _saved(self._drawn):
                        done = attempt()
                else:
                    done = attempt()
                self._seen = self._quiet.look()
                if self._seen == before:
                    return done
            return self._first(attempt)

    def each(
        self, epoch: int, indices: Sequence[int], read: Callable[[int], Any], failed: Callable[[Exception], Any]
    ) -> list[Any]:
        """Read samples one by one, each under its own randomness.

        Args:
            epoch: The epoch.
            indices: The samples.
            read: Reads one.
            failed: Makes what stands for a sample whose reading raised.
        """
        if not self._drawn or not indices:
            return self._read_all(epoch, indices, read, failed)
        prefix = (self.seed, epoch)
        keys = dict(zip(indices, derive_each(derive(*prefix), np.array(indices, dtype=np.uint64)), strict=True))
        if self._noted is None:
            return self._read_all(epoch, indices, _seeding(read, keys, self._drawn), failed)
        # In the first step some samples tell which generators the others are seeded for.
        told, others = indices[:_PROBED], indices[_PROBED:]
        done = self._read_all(epoch, told, lambda index: self.once((*prefix, index), partial(read, index)), failed)
        while True:
            quiet = [generator for generator in self._drawn if generator not in self._noted]
            looks = _looks(quiet)
            rest = self._read_all(epoch, others, _seeding(read, keys, self._noted), failed)
            changed = _changed(quiet, looks)
            if not changed:
                return done + rest
            self._noted += changed

    def _read_all(
        self, epoch: int, indices: Sequence[int], read: Callable[[int], Any], failed: Callable[[Exception], Any]
    ) -> list[Any]:
        reading = _Reading(self.seed, epoch, indices)
        done = reading.done
        left = iter(indices)
        token = _reading.set(reading)
        try:
            while True:
                try:
                    # The common case is this loop, without a call of our own between two samples.
                    for index in left:
                        done.append(read(index))
                except Exception as error:  # the loader's policy decides about it; the samples behind it are read
                    done.append(failed(error))
                else:
                    return done
        finally:
            _reading.reset(token)

    def together(
        self, epoch: int, indices: Sequence[int], read: Callable[[Sequence[int]], list[Any]]
    ) -> list[Any] | None:
        """Read samples in one go; None where they draw, so that each must be read under its own randomness.

        Args:
            epoch: The epoch.
            indices: At least one.
            read: Reads them all.
        """
        if not self._drawn:
            return read(indices)
        if self._noted is None:
            return None
        done = self.once((self.seed, epoch, indices[0]), partial(read, indices))
        return None if self._noted else done

    def once(self, parts: tuple[int, ...], job: Callable[[], T]) -> T:
        """Run a job under the randomness of a key.

        Args:
            parts: What the key is derived from, where one is needed.
            job: What to run.
        """
        if not self._drawn:
            return job()
        key = derive(*parts)
        for generator in self._drawn:
            generator.seed(key)
        if self._noted is None:
            return job()
        looks = _looks(self._drawn)
        try:
            return job()
        finally:
            changed = _changed(self._drawn, looks)
            self._noted += [generator for generator in changed if generator not in self._noted]

    def _first(self, attempt: Callable[[], T]) -> T:
        from torch.utils.data import get_worker_info

        everyone = global_generators()
        self._noted = list(self._drawn) if self._watch else None
        self._drawn = everyone
        self._fresh, self._seen = True, None
        self._alone = get_worker_info() is not None
        try:
            with _saved([] if self._alone else everyone):
                done = attempt()
            self._fresh = False
            return done
        finally:
            noted = (self._noted or []) if self._watch else everyone
            self._noted = None
            self._drawn = [generator for generator in everyone if generator in noted]
            self._quiet = Watch(generator for generator in everyone if generator not in noted)


def _seeding(
    read: Callable[[int], Any], keys: Mapping[int, int], generators: Iterable[Generator]
) -> Callable[[int], Any]:
    """Reading with these generators seeded for each sample; without any, reading itself."""
    chosen = tuple(generators)

    def seeded(index: int) -> Any:
        key = keys[index]
        for generator in chosen:
            generator.seed(key)
        return read(index)

    return seeded if chosen else read


def _looks(generators: Sequence[Generator]) -> list[Any]:
    return [Watch([generator]).look() for generator in generators]


def _changed(generators: Sequence[Generator], looks: Sequence[Any]) -> list[Generator]:
    return [generator for generator, old, new in zip(generators, looks, _looks(generators), strict=True) if old != new]


@contextmanager
def _saved(generators: Sequence[Generator]) -> Iterator[None]:
    states = [generator.save() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.restore(state)
