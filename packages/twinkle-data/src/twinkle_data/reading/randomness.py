"""The randomness of one sample: a function of (seed, epoch, index), wherever and by whomever it is read.

While user code reads a step, the global generators of `random`, numpy and torch (CPU) belong to the loader: each is
seeded before every sample, and the program's own states are put back behind the step. All of it goes by the three
libraries' public functions. These generators are one for the whole process, so loaders in several threads take turns,
and a thread that draws meanwhile is warned about.
"""

from __future__ import annotations

import os
import random
import threading
import time
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.random import mtrand

from twinkle_data.order.permutation import derive, derive_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

_WATCHED_EVERY = 64  # steps
_WATCHED_S = 0.0005

_DREW_LATE = (
    "samples that were read together (index {index} and others, in epoch {epoch}) drew from the global generator of "
    "{drew}, and those before them did not. What these drew depends on the batch; from here on samples are read one by "
    "one. Leave __getitems__ out, or draw from np.random.default_rng(sample_seed()) in __getitem__"
)
_DREW_MEANWHILE = (
    "another thread draws from the global generator of {drew} while a DataLoader reads samples in this process. All "
    "threads share that generator: the other one may get a sample's numbers, or its own ones twice, and samples are no "
    "longer a function of (seed, epoch, index). Give that thread a generator of its own (random.Random(), "
    "np.random.default_rng(), torch.Generator()), or load with num_workers=1 or sample_seeds=False"
)

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
        RuntimeError: No loader is reading a single sample here.
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
    """

    def __init__(self, seed: int, *, enabled: bool = True) -> None:
        self.seed = seed
        self._enabled = enabled
        self._generators = _Generators()
        self._held = False
        # Of each dataset whose samples can be read together: whether they are known to draw.
        self._apart: dict[int, bool] = {}

    def __getstate__(self) -> tuple[int, bool]:
        return self.seed, self._enabled

    def __setstate__(self, state: tuple[int, bool]) -> None:
        seed, enabled = state
        Randomness.__init__(self, seed, enabled=enabled)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Read a step in this block: the program's generators are put back behind it."""
        if not self._enabled:
            yield
            return
        turn = _turn
        with turn:
            self._generators.take()
            self._held = True
            try:
                yield
            finally:
                self._held = False
                self._generators.put_back()

    def wait(self, seconds: float) -> None:
        """Sleep; meanwhile the program has its generators, and other loaders read."""
        if not self._held:
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
            failed: Makes what stands for a sample whose reading raised.
        """
        if self._enabled and indices:
            keys = iter(derive_each(derive(self.seed, epoch), np.array(indices, dtype=np.uint64)))
            read = _seeding(read, keys, self._generators.seed)
        reading = _Reading(self.seed, epoch, indices)
        done = reading.done
        token = _reading.set(reading)
        try:
            for index in indices:
                try:
                    done.append(read(index))
                except Exception as error:  # the loader's policy decides about it; the samples behind it are read
                    done.append(failed(error))
        finally:
            _reading.reset(token)
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
        """Read samples in one go; one by one where they draw, so that each has its own randomness.

        The first sample of all is read alone, which shows whether these samples draw.

        Args:
            epoch: The epoch.
            indices: The samples.
            read: Reads several.
            failed: Makes what stands for samples whose reading raised.
            dataset: Number of the dataset that they belong to, where several are mixed.
        """
        if not self._enabled:
            return _at_once(indices, read, failed)
        done: list[Any] = []
        if dataset not in self._apart:
            done = self.each(epoch, indices[:1], partial(self._probe, dataset, read), failed)
        left = indices[len(done) :]
        if self._apart.get(dataset, True) or not left:
            return done + self.each(epoch, left, lambda index: read([index])[0], failed)
        self._generators.seed(derive(self.seed, epoch, left[0]))
        with _watched() as drew:
            done += _at_once(left, read, failed)
        if drew:
            self._apart[dataset] = True
            warnings.warn(_DREW_LATE.format(index=left[0], epoch=epoch, drew=" and ".join(drew)), RuntimeWarning, 2)
        return done

    def _probe(self, dataset: int, read: Callable[[Sequence[int]], list[Any]], index: int) -> Any:
        with _watched() as drew:
            (sample,) = read([index])
        self._apart[dataset] = bool(drew)
        return sample

    def once(self, parts: tuple[int, ...], job: Callable[[], T]) -> T:
        """Run a job under the randomness of a key.

        Args:
            parts: What the key is derived from.
            job: What to run.
        """
        if self._enabled:
            self._generators.seed(derive(*parts))
        return job()


class _Generators:
    """The three global generators, and where the program's own states are kept meanwhile.

    numpy's is exchanged for one of this object's own, so that one of any kind can be put back.
    """

    def __init__(self) -> None:
        self._own = np.random.MT19937(0)
        self._steps = 0
        self._program: tuple[Any, Any, Any, Any] | None = None

    def take(self) -> None:
        """Keep the program's states."""
        from torch import default_generator

        self._steps += 1
        if threading.active_count() > 1 and (self._steps & (self._steps - 1) == 0 or self._steps % _WATCHED_EVERY == 0):
            _look_at_other_threads()
        # numpy forgets a normal deviate in store when its bit generator is exchanged.
        stored = np.random.get_state(legacy=False)
        numpys = mtrand.get_bit_generator()
        mtrand.set_bit_generator(self._own)
        self._program = numpys, stored, random.getstate(), default_generator.get_state()

    def put_back(self) -> None:
        """Put the program's states back."""
        from torch import default_generator

        assert self._program is not None
        numpys, stored, pythons, torchs = self._program
        self._program = None
        default_generator.set_state(torchs)
        random.setstate(pythons)
        mtrand.set_bit_generator(numpys)
        if stored["has_gauss"]:
            current = np.random.get_state(legacy=False)
            np.random.set_state({**current, "has_gauss": 1, "gauss": stored["gauss"]})

    def seed(self, key: int) -> None:
        """Put all three into the states that a key in [0, 2**64 - 1] determines."""
        from torch import default_generator

        random.seed(key)
        if mtrand.get_bit_generator() is not self._own:  # a sample has put another one there
            mtrand.set_bit_generator(self._own)
        np.random.seed(key & 0xFFFFFFFF)
        # torch.manual_seed seeds accelerators too, which costs 160 microseconds.
        default_generator.manual_seed(key >> 1)


@contextmanager
def _watched() -> Iterator[list[str]]:
    """Gives a list that names, behind the block, the generators that were drawn from in it."""
    found: list[str] = []
    before = _states()
    yield found
    after = _states()
    found += [name for name, state in before.items() if state != after[name]]


def _look_at_other_threads() -> None:
    with _watched() as drew:
        time.sleep(_WATCHED_S)
    if drew:
        warnings.warn(_DREW_MEANWHILE.format(drew=" and ".join(drew)), RuntimeWarning, 2)


def _states() -> dict[str, object]:
    from torch import default_generator

    numpys: Any = np.random.get_state(legacy=False)
    words = {name: part.tobytes() if isinstance(part, np.ndarray) else part for name, part in numpys["state"].items()}
    return {
        "random": random.getstate(),
        "numpy": {**numpys, "state": words},
        "torch": default_generator.get_state().numpy().tobytes(),
    }


def _seeding(read: Callable[[int], Any], keys: Iterator[int], seed: Callable[[int], None]) -> Callable[[int], Any]:
    """Reading with the generators seeded for each sample."""

    def seeded(index: int) -> Any:
        seed(next(keys))
        return read(index)

    return seeded


def _at_once(
    indices: Sequence[int], read: Callable[[Sequence[int]], list[Any]], failed: Callable[[Exception], Any]
) -> list[Any]:
    try:
        return read(indices)
    except Exception as error:  # one by one will tell which sample it was
        return [failed(error)] * len(indices)
