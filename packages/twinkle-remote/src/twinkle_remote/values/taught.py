"""Splitters that a program registers itself: they travel with its calls, because no import brings them to a worker."""

from __future__ import annotations

import sys
from typing import Any

from twinkle_remote.values.rows import Splitter, T, set_splitter


class Taught:
    """Types and their splitters, as a task carries them; one object for as long as nothing is registered.

    Args:
        splitters: The splitter of each type.
    """

    __slots__ = ("_splitters",)

    def __init__(self, splitters: dict[type, Splitter[Any]]) -> None:
        self._splitters = splitters

    def __reduce__(self) -> tuple[Any, ...]:
        return Taught, (self._splitters,)

    def learn(self) -> None:
        """Register them in this process as well, and have its own calls carry them."""
        global _taught  # one table of splitters per process
        if self is not _taught:
            for kind, splitter in self._splitters.items():
                set_splitter(kind, splitter)
            _taught = Taught({**({} if _taught is None else _taught._splitters), **self._splitters})


_taught: Taught | None = None


def taught() -> Taught | None:
    """What a task has to carry; None where importing a value's class brings its splitter."""
    return _taught


def register_splitter(kind: type[T], splitter: Splitter[T]) -> None:
    """Teach dispatch and collect to divide values of a type, and of its subclasses, on every worker.

    Args:
        kind: The type; a later registration replaces an earlier one.
        splitter: Its length, slice and concat; a `ReducibleSplitter` has its own equal and reduce as well. It is sent
            to workers with the calls that follow, and so has to pickle, unless it is registered in the module that
            defines the type.

    Raises:
        TypeError: The splitter has one of equal and reduce without the other.
    """
    optional = [name for name in ("equal", "reduce") if name in dir(splitter)]
    if len(optional) == 1:
        raise TypeError(
            f"{type(splitter).__name__} has {optional[0]}, but a splitter has both equal and reduce "
            "(ReducibleSplitter), or neither (Splitter)"
        )
    set_splitter(kind, splitter)
    if kind.__module__ == "__main__" or sys._getframe(1).f_globals.get("__name__") != kind.__module__:
        Taught({kind: splitter}).learn()
