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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import mtrand  # numpy's own stubs do not export its two functions from numpy.random

from twinkle_remote.backends.support import RandomState

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHECK_SHARE = 0.01  # of the time that samples are read: about 100 draws of a thread meet samples before one is found
_CHECK_S = 0.0005  # at least

_DREW_MEANWHILE = (
    "another thread draws from the global generator of {drew} while a DataLoader reads samples in this process. All "
    "threads share that generator: the other one may get a sample's numbers, or its own ones twice, and samples are no "
    "longer a function of (seed, epoch, index). Give that thread a generator of its own (random.Random(), "
    "np.random.default_rng(), torch.Generator()), or load with num_workers=1 or sample_seeds=False"
)


class GlobalGenerators:
    """The three global generators; keeps the program's states while samples are read.

    numpy's bit generator is exchanged for one of this object, so that the program's can be of any kind.
    """

    def __init__(self) -> None:
        self._own = np.random.MT19937(0)
        self._steps = 0
        self._taken = 0.0
        self._unchecked_s = 0.0  # time that samples were read since the last check
        self._program: tuple[Any, Any, Any, Any] | None = None
        self._restored: RandomState | None = None

    def take(self) -> None:
        """Save the program's states; in a loader process, check that nothing drew since they were restored."""
        from torch import default_generator

        if threading.active_count() > 1:
            self._check_other_threads()
        if self._restored is not None:
            _warn_if_drawn(self._restored.moved())
        # numpy drops a saved normal deviate when its bit generator is exchanged.
        stored = np.random.get_state(legacy=False)
        numpys = mtrand.get_bit_generator()
        mtrand.set_bit_generator(self._own)
        self._program = numpys, stored, random.getstate(), default_generator.get_state()
        self._taken = time.perf_counter()

    def put_back(self) -> None:
        """Restore the program's states."""
        from torch import default_generator
        from torch.utils.data import get_worker_info

        assert self._program is not None
        self._unchecked_s += time.perf_counter() - self._taken
        numpys, stored, pythons, torchs = self._program
        self._program = None
        default_generator.set_state(torchs)
        random.setstate(pythons)
        mtrand.set_bit_generator(numpys)
        if stored["has_gauss"]:
            current = np.random.get_state(legacy=False)
            np.random.set_state({**current, "has_gauss": 1, "gauss": stored["gauss"]})
        if get_worker_info() is not None:  # its main thread does not draw between two steps, as a program does
            self._restored = RandomState(accelerators=False).read()

    def _check_other_threads(self) -> None:
        """Warn if a thread draws within a share of the time that samples were read; more often at the first steps."""
        self._steps += 1
        seconds = _CHECK_SHARE * self._unchecked_s
        if seconds < _CHECK_S and self._steps & (self._steps - 1):
            return
        self._unchecked_s = 0.0
        with find_rng_use() as drew:
            time.sleep(max(seconds, _CHECK_S))
        _warn_if_drawn(drew)

    def seed(self, key: int) -> None:
        """Seed all three.

        Args:
            key: In [0, 2**64 - 1].
        """
        from torch import default_generator

        random.seed(key)
        if mtrand.get_bit_generator() is not self._own:  # user code exchanged it while a sample was read
            mtrand.set_bit_generator(self._own)
        np.random.seed(key & 0xFFFFFFFF)
        # torch.manual_seed seeds accelerators too, which costs 160 microseconds.
        default_generator.manual_seed(key >> 1)


@contextmanager
def find_rng_use() -> Iterator[list[str]]:
    """Find the libraries whose global generators are drawn from in a block.

    Yields:
        A list that holds their names after the block.
    """
    found: list[str] = []
    before = RandomState(accelerators=False).read()
    yield found
    found += before.moved()


def _warn_if_drawn(drew: list[str]) -> None:
    if drew:
        warnings.warn(_DREW_MEANWHILE.format(drew=" and ".join(drew)), RuntimeWarning, 2)
