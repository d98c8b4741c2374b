"""Subjects of the checks of a component's construction and release."""

from __future__ import annotations

import random
import time
import weakref
from importlib.util import find_spec
from typing import Any

from twinkle_remote import remote_class, remote_function


def draw(seed: int, count: int = 30) -> list[float]:
    """Numbers from the global generators of this process after a seed; other threads may draw in between."""
    libraries = _seeded(seed)
    out = []
    for _ in range(count):
        out += [float(library()) for library in libraries]
        time.sleep(0)
    return out


def _seeded(seed: int) -> list[Any]:
    random.seed(seed)
    found: list[Any] = [random.random]
    if find_spec("numpy") is not None:
        import numpy

        numpy.random.seed(seed)
        found.append(numpy.random.random)
    if find_spec("torch") is not None:
        import torch

        torch.manual_seed(seed)
        found.append(lambda: torch.rand(()))
    return found


@remote_class()
class Seeded:
    """Draws as it is built.

    Args:
        seed: Seed of the generators.
    """

    def __init__(self, seed: int) -> None:
        self._drawn = draw(seed)

    @remote_function(dispatch="all")
    def drawn(self) -> list[float]:
        """The numbers that were drawn."""
        return self._drawn


class Weights:
    """Weights of a component; they support weak references."""


_held: dict[str, weakref.ref[Weights]] = {}


@remote_class()
class Holder:
    """Holds weights, in a cycle.

    Args:
        name: Name of the weights in its process.
    """

    def __init__(self, name: str) -> None:
        self.weights = Weights()
        self.itself = self
        _held[name] = weakref.ref(self.weights)

    @remote_function(dispatch="all", collect="first")
    def rows(self, rows: list[int]) -> list[int]:
        """Identity."""
        return rows

    @remote_function(dispatch="all")
    def holds(self, name: str) -> bool:
        """Whether the weights of that name are still there in this process."""
        return _held[name]() is not None


@remote_class()
class Keeper:
    """Holds another component's handle.

    Args:
        holder: The handle.
    """

    def __init__(self, holder: Holder) -> None:
        self.holder = holder

    @remote_function(dispatch="all", collect="first")
    def asks(self) -> list[int]:
        """The answer of the other component."""
        return self.holder.rows([1])
