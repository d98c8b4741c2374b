"""Seeds the generators of Python, numpy and torch in a process, also if numpy or torch is loaded later."""

from __future__ import annotations

import operator
import random
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex, cast

from twinkle_remote.sessions.collector import collector_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

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


def seed_process(seed: int) -> None:
    """Seed Python's generator now, and numpy's and torch's now or at the end of their import.

    Args:
        seed: From 0 to 2**32 - 1.
    """
    global _session  # one session per process is the contract
    stop_seeding()
    _session = SessionSeed(seed, _session.session + 1)
    random.seed(seed)
    for name in _SEEDERS:
        if sys.modules.get(name) is None:
            _finder.seeds[name] = seed
        else:
            _seed_module(import_module(name), seed)  # waits if another thread is importing it
    if _finder.seeds:
        sys.meta_path.insert(0, _finder)


def stop_seeding() -> None:
    """Do not seed libraries that are loaded from now on."""
    _finder.seeds.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _seed_module(module: ModuleType, seed: int) -> None:
    _SEEDERS[module.__name__](module, seed)


_SEEDERS: dict[str, Callable[[ModuleType, int], object]] = {
    "numpy.random": lambda generators, seed: generators.seed(seed),  # numpy loads it when it is first used
    "torch": lambda torch, seed: torch.manual_seed(seed),
}


class _SeedOnImport:
    """Finds modules through the other finders, with a loader that seeds the module after loading.

    Attributes:
        seeds: Seed of each module that is not loaded yet.
    """

    def __init__(self) -> None:
        self.seeds: dict[str, int] = {}
        self._asking: set[str] = set()  # the import lock keeps other threads out

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, if the module waits for its seed."""
        if fullname not in self.seeds or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._asking.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _SeedingLoader(spec.loader))  # importlib.abc itself is slow to import
        return spec


_finder = _SeedOnImport()


class _SeedingLoader:
    """Loads a module with its own loader, then seeds it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module, still empty."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute and seed the module, which keeps its own loader."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with collector_paused():  # to walk the many objects that torch makes is a tenth of the time that it loads
            self._loader.exec_module(module)
        seed = _finder.seeds.pop(module.__name__, None)
        if seed is not None:
            _seed_module(module, seed)
