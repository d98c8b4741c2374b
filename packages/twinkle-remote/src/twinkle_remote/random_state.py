"""The state of the global random generators of `random`, numpy and torch: read, set and compared."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class _Library(NamedTuple):
    """The functions for one library's generators; the first argument of each is the loaded module.

    Attributes:
        read: Reads the current state.
        install: Sets a state.
        equal: Whether two states are equal.
    """

    read: Callable[[Any], Any]
    install: Callable[[Any, Any], object]
    equal: Callable[[Any, Any], bool]


def _install_torch(torch: Any, state: tuple[Any, Any]) -> None:
    cpu, devices = state
    torch.set_rng_state(cpu)
    if devices is not None:
        torch.cuda.set_rng_state_all(devices)


def _read_torch(torch: Any) -> tuple[Any, Any]:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), devices


def _plain(numpys: Any) -> Any:
    """A state of numpy's, of a bit generator of any kind, with bytes in place of arrays, so that `==` compares it."""
    if isinstance(numpys, dict):
        return {name: _plain(part) for name, part in numpys.items()}
    return numpys.tobytes() if hasattr(numpys, "tobytes") else numpys


_ALL = {
    "random": _Library(
        lambda random: random.getstate(),
        lambda random, state: random.setstate(state),
        lambda left, right: bool(left == right),
    ),
    "numpy": _Library(
        lambda numpy: numpy.random.get_state(legacy=False),
        lambda numpy, state: numpy.random.set_state(state),
        lambda left, right: bool(_plain(left) == _plain(right)),
    ),
    "torch": _Library(_read_torch, _install_torch, lambda left, right: bool(left[0].equal(right[0]))),
}
_ON_CPU = {
    **_ALL,
    "torch": _Library(
        lambda torch: torch.get_rng_state(),
        lambda torch, state: torch.set_rng_state(state),
        lambda left, right: bool(left.equal(right)),
    ),
}

LIBRARIES = tuple(_ALL)


class RandomState:
    """A state of the global generators of the libraries that were loaded when it was read.

    Args:
        accelerators: Whether torch's generators of accelerators belong to it; `moved` compares those of the CPU.
        libraries: Names of the libraries that belong to it.
    """

    def __init__(self, *, accelerators: bool = True, libraries: Collection[str] = LIBRARIES) -> None:
        self._accelerators = accelerators
        self._libraries = {name: (_ALL if accelerators else _ON_CPU)[name] for name in libraries}
        self._states: dict[str, Any] = {}

    def read(self) -> RandomState:
        """Read the current state into this object; returns itself."""
        self._states = {name: self._libraries[name].read(module) for name, module in _loaded(self._libraries).items()}
        return self

    def __getitem__(self, name: str) -> Any:
        """The state of one library as its own functions give it, of the ones that were loaded when it was read."""
        return self._states[name]

    def install(self) -> None:
        """Set the process's generators to this state."""
        for name, module in _loaded(self._states).items():
            self._libraries[name].install(module, self._states[name])

    def moved(self, now: RandomState | None = None) -> list[str]:
        """The libraries whose state differs from this one.

        Args:
            now: The state to compare with, with or without accelerators as this one; None is the current one.
        """
        if now is None:
            now = RandomState(accelerators=self._accelerators, libraries=self._libraries).read()
        shared = [name for name in self._states if name in now._states]
        return [name for name in shared if not self._libraries[name].equal(self._states[name], now._states[name])]


def _loaded(libraries: Iterable[str]) -> dict[str, Any]:
    """Those of the libraries that are loaded, by name; waits for a library that another thread is loading."""
    return {name: import_module(name) for name in libraries if sys.modules.get(name) is not None}
