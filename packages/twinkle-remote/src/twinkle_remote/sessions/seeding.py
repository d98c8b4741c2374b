"""The seed of a session: it seeds Python, numpy and torch in a process, and once more before each constructor."""

from __future__ import annotations

import operator
import random
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, SupportsIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

SEEDS = 1 << 32  # what numpy.random.seed takes


_session: tuple[int | None, int] = None, 0
_components = count()
_constructing = threading.Lock()
_alone = threading.local()


def session_seed() -> tuple[int | None, int]:
    """The seed of this process's session, or of its last one, and the session's number, from 1; None and 0 before."""
    return _session


def check_seed(seed: SupportsIndex) -> int:
    """Check a seed, and return it as a Python integer.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is not from 0 to 2**32 - 1.
    """
    number = operator.index(seed)
    if not 0 <= number < SEEDS:
        raise ValueError(f"seed={number} must be from 0 to 2**32 - 1, which numpy takes; use {number % SEEDS}")
    return number


def begin_session(seed: int) -> None:
    """Take the seed of the session that begins in this process; no generator moves."""
    global _session, _components  # one session per process is the contract
    _session, _components = (seed, _session[1] + 1), count()


def seed_process(seed: int) -> None:
    """Seed Python's generator, and numpy's and torch's where they are loaded."""
    random.seed(seed)
    for name, library in _loaded().items():
        (library.random.seed if name == "numpy" else library.manual_seed)(seed)


def next_component_seed() -> int | None:
    """The seed of the next component that this process builds: the first has the session's, the second one more.

    None before the first session of the process.
    """
    seed = _session[0]
    return None if seed is None else (seed + next(_components)) % SEEDS


def read_generators() -> dict[str, Any]:
    """The states of the global generators of Python, and of numpy and torch where they are loaded."""
    states: dict[str, Any] = {"random": random.getstate()}
    for name, library in _loaded().items():
        states[name] = library.random.get_state(legacy=False) if name == "numpy" else library.get_rng_state()
        if name == "torch" and library.cuda.is_initialized():
            states["cuda"] = library.cuda.get_rng_state_all()
    return states


def set_generators(states: Mapping[str, Any]) -> None:
    """Set the global generators to what `read_generators` has returned."""
    random.setstate(states["random"])
    for name, library in _loaded().items():
        if name in states:
            (library.random.set_state if name == "numpy" else library.set_rng_state)(states[name])
        if name == "torch" and "cuda" in states:
            library.cuda.set_rng_state_all(states["cuda"])


def _loaded() -> Mapping[str, Any]:
    """Those of the libraries that are loaded, by name; waits for a library that another thread is loading."""
    return {name: import_module(name) for name in ("numpy", "torch") if sys.modules.get(name) is not None}


class constructor_seeded:  # noqa: N801 - a context manager that reads as a noun; contextlib's fail on a frozen error
    """A block with its own generators, in a process of the user's program: afterwards these are as before.

    It waits until no other thread is in such a block; one that waits for a call meanwhile lets others in.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._before: dict[str, Any] = {}
        self._is_inner = getattr(_alone, "outside", None) is not None  # its constructor builds another component here

    def __enter__(self) -> None:
        if not self._is_inner:
            _constructing.acquire()
            _alone.outside = self._before
        self._before.update(read_generators())
        seed_process(self._seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_generators(self._before)
        if not self._is_inner:
            _alone.outside = None
            _constructing.release()


@contextmanager
def others_construct() -> Iterator[None]:
    """A block in which this thread waits for a call: other threads may run constructors meanwhile."""
    outside: dict[str, Any] | None = getattr(_alone, "outside", None)
    if outside is None:
        yield
        return
    own = read_generators()
    set_generators(outside)
    _constructing.release()
    try:
        yield
    finally:
        _constructing.acquire()
        outside.update(read_generators())
        set_generators(own)
