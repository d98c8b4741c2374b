"""The seed of a session: it seeds Python, numpy and torch in a process, and once more before each constructor."""

from __future__ import annotations

import operator
import random
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex

from twinkle_remote.random_state import RandomState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

SEEDS = 1 << 32  # what numpy.random.seed takes


class SessionSeed(NamedTuple):
    """The seed of a process's session.

    Attributes:
        seed: From 0 to 2**32 - 1; None before the first session of the process.
        session: Number of the session among those of the process, from 1; 0 before the first one.
    """

    seed: int | None
    session: int


_session = SessionSeed(None, 0)
_components = count()
_constructing = threading.Lock()
_alone = threading.local()


def session_seed() -> SessionSeed:
    """The seed of this process's session, or of its last one."""
    return _session


def check_seed(seed: SupportsIndex) -> int:
    """Check a seed, and return it as a Python integer.

    Args:
        seed: From 0 to 2**32 - 1.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is out of range.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"seed={seed!r} must be an integer, got {type(seed).__name__}") from None
    if not 0 <= number < SEEDS:
        raise ValueError(f"seed={number} must be from 0 to 2**32 - 1, which numpy takes; use {number % SEEDS}")
    return number


def begin_session(seed: int) -> None:
    """Take the seed of the session that begins in this process; no generator moves.

    Args:
        seed: From 0 to 2**32 - 1.
    """
    global _session, _components  # one session per process is the contract
    _session, _components = SessionSeed(seed, _session.session + 1), count()


def seed_process(seed: int) -> None:
    """Seed Python's generator, and numpy's and torch's where they are loaded.

    Args:
        seed: From 0 to 2**32 - 1.
    """
    random.seed(seed)
    for library, name, function in (("numpy", "numpy.random", "seed"), ("torch", "torch", "manual_seed")):
        if sys.modules.get(library) is not None:
            getattr(import_module(name), function)(seed)  # waits if another thread is importing it


def next_component_seed() -> int | None:
    """The seed of the next component that this process builds: the first has the session's, the second one more.

    None before the first session of the process.
    """
    seed = _session.seed
    return None if seed is None else (seed + next(_components)) % SEEDS


class constructor_seeded:  # noqa: N801 - a context manager that reads as a noun; contextlib's fail on a frozen error
    """A block with its own generators, in a process of the user's program: afterwards these are as before.

    It waits until no other thread is in such a block; one that waits for a call meanwhile lets others in.

    Args:
        seed: From 0 to 2**32 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._before = RandomState()
        self._is_inner = getattr(_alone, "outside", None) is not None  # its constructor builds another component here

    def __enter__(self) -> None:
        if not self._is_inner:
            _constructing.acquire()
            _alone.outside = self._before
        self._before.read()
        seed_process(self._seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._before.install()
        if not self._is_inner:
            _alone.outside = None
            _constructing.release()


@contextmanager
def others_construct() -> Iterator[None]:
    """A block in which this thread waits for a call: other threads may run constructors meanwhile."""
    outside: RandomState | None = getattr(_alone, "outside", None)
    if outside is None:
        yield
        return
    own = RandomState().read()
    outside.install()
    _constructing.release()
    try:
        yield
    finally:
        _constructing.acquire()
        outside.read()
        own.install()
