"""The global generators of `random`, numpy and torch (CPU) while a loader has them.

It uses public functions of the three libraries only. A process has one such generator of each library for all its
threads. So the loader checks for draws of other threads while it reads, and warns about them.
"""

from __future__ import annotations

import random
import threading
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.random import mtrand  # numpy's own stubs do not export its two functions from numpy.random

from twinkle_remote.backends.support import RandomState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

LIBRARIES: Final = ("random", "numpy", "torch")
_CHECK_SHARE = 0.01  # of the time that samples are read: about 100 draws of a thread meet samples before one is found
_CHECK_S = 0.0005  # at least
_CHECKED_STEPS = 64

_DREW_MEANWHILE = (
    "another thread draws from the global generator of {drew} while a DataLoader reads samples in this process. All "
    "threads share that generator: the other one may get a sample's numbers, or its own ones twice, and samples are no "
    "longer a function of (seed, epoch, index). Give that thread a generator of its own (random.Random(), "
    "np.random.default_rng(), torch.Generator()), or load with num_workers=1 or sample_seeds=False"
)
_DREW_UNSEEDED = (
    "the global generator of {drew} was drawn from while samples were read, and sample_seeds={seeded!r} leaves it out: "
    "what was drawn is not a function of (seed, epoch, index). Add it to sample_seeds=, or use sample_seeds=True"
)


class GlobalGenerators:
    """The global generators of some libraries; keeps the program's states while samples are read.

    numpy's bit generator is exchanged for one of this object, so that the program's can be of any kind. The generators
    of the other libraries are left alone; now and then it checks that nothing draws from them.

    Args:
        libraries: Names of `LIBRARIES`.
    """

    def __init__(self, libraries: Collection[str] = LIBRARIES) -> None:
        self._libraries = tuple(libraries)
        self._others = tuple(name for name in LIBRARIES if name not in libraries)
        self._own = np.random.MT19937(0)
        self._numpys: Any = None  # the program's bit generator
        self._steps = 0
        self._unseeded: RandomState | None = None
        self._thread_checks = 0
        self._taken = 0.0
        self._unchecked_s = 0.0  # time that samples were read since the last check
        self._program: RandomState | None = None
        self._restored: RandomState | None = None

    def take(self) -> None:
        """Save the program's states; in a loader process, check that nothing drew since they were restored."""
        if self._libraries:
            self._save()
        if self._others:
            self._steps += 1
            # Both kinds of steps: samples that draw do so in the first one, or now and then.
            if self._steps & (self._steps - 1) == 0 or self._steps % _CHECKED_STEPS == 0:
                self._unseeded = _read(self._others)

    def put_back(self) -> None:
        """Restore the program's states."""
        if self._libraries:
            self._restore()
        before, self._unseeded = self._unseeded, None
        if before is not None and (drew := before.moved()):
            warnings.warn(_DREW_UNSEEDED.format(drew=" and ".join(drew), seeded=self._libraries), RuntimeWarning, 2)

    def _save(self) -> None:
        if threading.active_count() > 1:
            self._check_other_threads()
        self._program = _read(self._libraries)
        if self._restored is not None:
            _warn_if_drawn(self._restored.moved(self._program))
        if "numpy" in self._libraries:
            self._numpys = mtrand.get_bit_generator()
            mtrand.set_bit_generator(self._own)
        self._taken = time.perf_counter()

    def _restore(self) -> None:
        from torch import default_generator
        from torch.utils.data import get_worker_info

        program, self._program = self._program, None
        assert program is not None
        self._unchecked_s += time.perf_counter() - self._taken
        # The program draws between two steps, and the main thread of a loader process does not.
        self._restored = None if get_worker_info() is None else program
        if "torch" in self._libraries:
            default_generator.set_state(program["torch"])
        if "random" in self._libraries:
            random.setstate(program["random"])
        if "numpy" in self._libraries:
            mtrand.set_bit_generator(self._numpys)
            stored = program["numpy"]
            if stored["has_gauss"]:  # numpy drops a saved normal deviate when its bit generator is exchanged
                current = np.random.get_state(legacy=False)
                np.random.set_state({**current, "has_gauss": 1, "gauss": stored["gauss"]})

    def _check_other_threads(self) -> None:
        """Warn if a thread draws within a share of the time that samples were read; more often at the first steps."""
        self._thread_checks += 1
        seconds = _CHECK_SHARE * self._unchecked_s
        if seconds < _CHECK_S and self._thread_checks & (self._thread_checks - 1):
            return
        self._unchecked_s = 0.0
        with find_rng_use(self._libraries) as drew:
            time.sleep(max(seconds, _CHECK_S))
        _warn_if_drawn(drew)

    def seed(self, key: int) -> None:
        """Seed all of them.

        Args:
            key: In [0, 2**64 - 1].
        """
        for seed in self.seeders():
            seed(key)

    def seeders(self) -> list[Callable[[int], object]]:
        """The functions that seed one library each; a step looks them up once, for all its samples."""
        from torch import default_generator

        current, seed_current, seed_cpu = mtrand.get_bit_generator, np.random.seed, default_generator.manual_seed

        def seed_numpy(key: int) -> None:
            if current() is not self._own:  # user code exchanged it while a sample was read
                mtrand.set_bit_generator(self._own)
            seed_current(key & 0xFFFFFFFF)

        # torch.manual_seed seeds accelerators too, which costs 160 microseconds.
        def seed_torch(key: int) -> None:
            seed_cpu(key >> 1)

        known: dict[str, Callable[[int], object]] = {"random": random.seed, "numpy": seed_numpy, "torch": seed_torch}
        return [known[name] for name in self._libraries]


@contextmanager
def find_rng_use(libraries: Collection[str] = LIBRARIES) -> Iterator[list[str]]:
    """Find the libraries whose global generators are drawn from in a block.

    Args:
        libraries: Names of `LIBRARIES`, of those that are looked at.

    Yields:
        A list that holds their names after the block.
    """
    found: list[str] = []
    before = _read(libraries)
    yield found
    found += before.moved()


def _warn_if_drawn(drew: list[str]) -> None:
    if drew:
        warnings.warn(_DREW_MEANWHILE.format(drew=" and ".join(drew)), RuntimeWarning, 2)


def _read(libraries: Collection[str]) -> RandomState:
    import torch  # noqa: F401  # the state of a library that nobody has loaded would not be read

    return RandomState(accelerators=False, libraries=libraries).read()
