"""The global random generators of `random`, numpy and torch as one state that is read, set and compared."""

from __future__ import annotations

import sys
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class _Library(NamedTuple):
    """The functions for one library's generators; the first argument of each is the loaded module.

    Attributes:
        seeded: Makes the state of a seed.
        read: Reads the current state.
        install: Sets a state.
        equal: Whether two states are equal.
    """

    seeded: Callable[[Any, int], Any]
    read: Callable[[Any], Any]
    install: Callable[[Any, Any], object]
    equal: Callable[[Any, Any, Any], bool]


def _install_torch(torch: Any, state: tuple[Any, Any, int | None]) -> None:
    cpu, devices, seed = state
    torch.set_rng_state(cpu)
    if not torch.cuda.is_initialized():
        return
    if devices is not None:
        torch.cuda.set_rng_state_all(devices)
    elif seed is not None:
        torch.cuda.manual_seed_all(seed)


def _read_torch(torch: Any) -> tuple[Any, Any, int | None]:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), devices, None


def _equal_numpy(_: Any, left: Any, right: Any) -> bool:
    return bool(left[2:] == right[2:] and (left[1] == right[1]).all())


_LIBRARIES = {
    "random": _Library(
        lambda _, seed: Random(seed).getstate(),
        lambda random: random.getstate(),
        lambda random, state: random.setstate(state),
        lambda _, left, right: bool(left == right),
    ),
    "numpy": _Library(
        lambda numpy, seed: numpy.random.RandomState(seed).get_state(),
        lambda numpy: numpy.random.get_state(),
        lambda numpy, state: numpy.random.set_state(state),
        _equal_numpy,
    ),
    "torch": _Library(
        lambda torch, seed: (torch.Generator().manual_seed(seed).get_state(), None, seed),
        _read_torch,
        _install_torch,
        lambda torch, left, right: torch.equal(left[0], right[0]),
    ),
}

LIBRARIES = tuple(_LIBRARIES)


class Generators:
    """A state of the global generators; a library that is loaded later starts from the seed.

    Args:
        seed: From 0 to 2**32 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: dict[str, Any] = {}

    def read(self) -> Generators:
        """Read the current state into this object; returns itself."""
        self._states = {name: _LIBRARIES[name].read(module) for name, module in _loaded().items()}
        return self

    def install(self) -> None:
        """Set the process's generators to this state."""
        for name, module in _loaded().items():
            if name not in self._states:
                self._states[name] = _LIBRARIES[name].seeded(module, self._seed)
            _LIBRARIES[name].install(module, self._states[name])

    def exchange(self, other: Generators) -> None:
        """Read the current state into this object and set another one, library by library.

        What another thread draws between these two is lost, so they follow each other at once.
        """
        states = {}
        for name, module in _loaded().items():
            library = _LIBRARIES[name]
            if name not in other._states:
                other._states[name] = library.seeded(module, other._seed)
            new = other._states[name]
            states[name] = library.read(module)
            library.install(module, new)
        self._states = states

    def copy(self) -> Generators:
        """Another object with this state."""
        twin = Generators(self._seed)
        twin._states = dict(self._states)
        return twin

    def moved(self, now: Generators | None = None) -> list[str]:
        """The libraries whose state differs from this one.

        Args:
            now: The state to compare with; None is the current one.
        """
        states = (Generators(0).read() if now is None else now)._states
        return [
            name
            for name, module in _loaded().items()
            if name in self._states
            and name in states
            and not _LIBRARIES[name].equal(module, self._states[name], states[name])
        ]


def _loaded() -> dict[str, Any]:
    """The loaded libraries by name; waits for a library that another thread is loading."""
    return {name: import_module(name) for name in _LIBRARIES if sys.modules.get(name) is not None}
