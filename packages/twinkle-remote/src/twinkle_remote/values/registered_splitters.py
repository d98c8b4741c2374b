"""Splitters that a program registers itself: they travel with its calls, because no import brings them to a worker."""

from __future__ import annotations

import sys
from typing import Any

from twinkle_remote.values.rows import Splitter, T, set_splitter


class RegisteredSplitters:
    """The registered types and splitters, which tasks carry; the same object until the next registration.

    Args:
        splitters: The splitter of each type.
    """

    __slots__ = ("_splitters",)

    def __init__(self, splitters: dict[type, Splitter[Any]]) -> None:
        self._splitters = splitters

    def __reduce__(self) -> tuple[Any, ...]:
        return RegisteredSplitters, (self._splitters,)

    def register_here(self) -> None:
        """Register the splitters in this process too; its own calls carry them as well."""
        global _registered  # one table of splitters per process
        if self is not _registered:
            for kind, splitter in self._splitters.items():
                set_splitter(kind, splitter)
            _registered = RegisteredSplitters(
                {**({} if _registered is None else _registered._splitters), **self._splitters}
            )


_registered: RegisteredSplitters | None = None


def registered_splitters() -> RegisteredSplitters | None:
    """The splitters that a task must carry; None if there are none."""
    return _registered


def register_splitter(kind: type[T], splitter: Splitter[T]) -> None:
    """Register how dispatch and collect divide values of a type, and of its subclasses, on every worker.

    Args:
        kind: The type; a later registration replaces an earlier one.
        splitter: Its length, slice and concat; a `ReducibleSplitter` also has equal and reduce. Later calls send it to
            the workers, so it must pickle, unless it is registered in the module that defines the type.

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
        RegisteredSplitters({kind: splitter}).register_here()
