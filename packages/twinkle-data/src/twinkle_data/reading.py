"""Reads the rows of a step: each draws its own random numbers, and a bad one is an error or is masked.

While a sample is read, what it draws from `random`, numpy and torch (CPU) is a function of (seed, epoch, index), in
every process: the three generators are seeded before it, and the program's states are put back after the step. What
runs no code of the program's (lists, arrays, columns) is not seeded, and with `sample_seeds=False` nothing is.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twinkle_data.batch import Batch, BatchInfo
from twinkle_data.errors import BadSampleError
from twinkle_data.order import derive, derive_each
from twinkle_data.sources import digest, is_plain, set_epoch, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twinkle_data.plan import Step

TRIES = 64  # samples that are tried in the place of one that cannot be read
_COLLATE = 1 << 63  # marks keys of a step, which are of no sample


class Read(NamedTuple):
    """A step that was read."""

    info: BatchInfo
    rows: Any  # the samples, or what `collate_fn` made of them
    packs: tuple[int, ...] = ()  # rows of each pack; empty without packing
    source: Any = None  # state of a stream after the step
    compared: str = ""  # digest of a sample that is the same on all ranks; empty where nothing is compared


_sample: ContextVar[list[int] | None] = ContextVar("twinkle_sample", default=None)
"""Seed, epoch and index of the sample that is being read."""


def sample_seed() -> int:
    """The 64-bit seed of the sample that is being read, for a generator of your own, the same in every process.

    `np.random.default_rng(sample_seed())` in a `__getitem__` needs no seeding by the loader.

    Raises:
        RuntimeError: No loader is reading a single sample here.
    """
    sample = _sample.get()
    if sample is None:
        raise RuntimeError("sample_seed() has a value only while a DataLoader reads a sample")
    return derive(*sample)


def seed_generators(key: int) -> None:
    """Seed the global generators of `random`, numpy and torch (CPU) by a 64-bit key."""
    from torch import default_generator

    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    default_generator.manual_seed(key >> 1)


@contextmanager
def program_generators_kept() -> Iterator[None]:
    """Give the program its global generators back after the block, as they were before it."""
    from torch import default_generator

    states = random.getstate(), np.random.get_state(), default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        default_generator.set_state(states[2])


class SampleReader(ABC):
    """Reads samples one by one, each with its own random numbers, and collates them.

    It is picklable, so that a loader process can have it. Its subclasses read steps of a dataset and of a stream.
    """

    def __init__(
        self, dataset: Any, seed: int, *, sample_seeds: bool, collate: Callable[[Any], Any] | None, plain: bool = False
    ) -> None:
        self.dataset, self._seed, self._collate = dataset, seed, collate
        self._seeded, self._seeds_collate = sample_seeds and not plain, sample_seeds and collate is not None

    def read(self, step: Any) -> Read | None:
        """Read one step, and give the program its generators back.

        Raises:
            BadSampleError: A sample cannot be read.
        """
        if not self._seeded and not self._seeds_collate:
            return self._read(step)
        with program_generators_kept():
            return self._read(step)

    @abstractmethod
    def _read(self, step: Any) -> Read | None:
        """Read one step with the generators as they are."""

    def _each(self, epoch: int, indices: Sequence[int], read: Callable[[int], Any]) -> list[Any]:
        """The samples that `read` returns, one for each index."""
        found, keys = [], indices
        if self._seeded:
            keys = derive_each(derive(self._seed, epoch), np.array(indices, dtype=np.uint64)).tolist()
        sample = [self._seed, epoch, 0]
        token = _sample.set(sample)
        try:
            for index, key in zip(indices, keys, strict=True):
                sample[2] = index
                if self._seeded:
                    seed_generators(key)
                found.append(read(index))
            return found
        finally:
            _sample.reset(token)

    def _begin_sample(self, index: int) -> None:
        """Read another sample in the place of the one whose turn it is, or the same one again."""
        sample = _sample.get()
        assert sample is not None
        sample[2] = index
        if self._seeded:
            seed_generators(derive(*sample))

    def _collated(self, samples: list[Any], info: BatchInfo, packs: tuple[int, ...] = (), **more: Any) -> Read:
        """The samples of a step, or what `collate_fn` makes of their batch."""
        if self._collate is None:
            return Read(info, samples, packs, **more)
        if self._seeds_collate:
            seed_generators(derive(self._seed, _COLLATE + info.epoch, info.position, *info.indices[:1]))
        return Read(info, self._collate(batch_of(samples, info, packs)), packs, **more)


class Reader(SampleReader):
    """Reads steps of a dataset with samples by index; with `skip` a bad one is masked, and another takes its row."""

    def __init__(self, dataset: Any, seed: int, *, skip: bool, **options: Any) -> None:
        super().__init__(dataset, seed, plain=is_plain(dataset), **options)
        self._skip, self._epoch = skip, -1

    def _read(self, step: Step) -> Read:
        if step.epoch != self._epoch:
            self._epoch = step.epoch
            set_epoch(self.dataset, step.epoch)
        compared = "" if step.compared is None else self._digest_of(step.epoch, step.compared)
        valid = [True] * (len(step.indices) - step.padding) + [False] * step.padding
        samples = self._at_once(step) or self._one_by_one(step, valid)
        return self._collated(
            samples, BatchInfo(step.epoch, step.position, step.indices, valid, step.rows), step.packs, compared=compared
        )

    def _at_once(self, step: Step) -> list[Any] | None:
        """The rows of a dataset that reads several together, where they need no seeds of their own."""
        together = getattr(self.dataset, "__getitems__", None)
        found: list[Any] = []
        if together is not None and not self._seeded:
            with suppress(Exception):  # reading them one by one shows which one it was
                found = list(together(step.indices))
        return found if len(found) == len(step.indices) else None

    def _one_by_one(self, step: Step, valid: list[bool]) -> list[Any]:
        dataset, row = self.dataset, 0

        def read(index: int) -> Any:
            nonlocal row
            row += 1
            try:
                return dataset[index]
            except Exception as error:  # whatever the dataset raises
                valid[row - 1] = False
                return self._instead(step, index, error)

        return self._each(step.epoch, step.indices, read)

    def _instead(self, step: Step, index: int, error: Exception) -> Any:
        """The sample in the row of a bad one."""
        for turn in range(1, TRIES if self._skip else 1):
            other = derive(self._seed, step.epoch, index, turn) % len(self.dataset)
            try:
                self._begin_sample(other)
                return self.dataset[other]
            except Exception as another:  # the next one is tried
                error = another
        tried = f", nor any of {TRIES - 1} others in its place" if self._skip else ""
        raise BadSampleError(
            f"sample {index} cannot be read in epoch {step.epoch}{tried}: {type(error).__name__}: {error}", index
        ) from error

    def _digest_of(self, epoch: int, index: int) -> str:
        """The digest of a sample, which is the same on all ranks; of plain rows the fingerprint has one."""
        if not self._seeded:
            return ""
        try:
            (sample,) = self._each(epoch, [index], self.dataset.__getitem__)
        except Exception as error:  # the rank that has it in its step raises it
            return type(error).__name__
        return digest(text_of(sample, floats=False))


def batch_of(samples: Sequence[Any], info: BatchInfo, packs: Sequence[int], *, sharded: bool = False) -> Batch[Any]:
    """The batch of the samples of a step; with packing a batch of packs, whose indices count the packs."""
    whole = Batch(
        samples, indices=info.indices, valid=info.valid, epoch=info.epoch, position=info.position, sharded=sharded
    )
    if not packs:
        return whole
    found = [whole[end - size : end] for size, end in zip(packs, accumulate(packs), strict=True)]
    flags = [any(pack.valid) for pack in found]
    return Batch(
        found, indices=range(len(found)), valid=flags, epoch=info.epoch, position=info.position, sharded=sharded
    )
