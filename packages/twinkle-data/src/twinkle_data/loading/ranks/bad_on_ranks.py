"""Bad samples of launched processes, counted together in the store of their process group."""

from __future__ import annotations

from typing import Any


class BadOnRanks:
    """Counts the bad samples that all processes have found with one loader, each sample once.

    Args:
        store: Of the process group.
        loader: Name of the loader, the same on each rank.
    """

    def __init__(self, store: Any, loader: str) -> None:
        self._store = store
        self._prefix = f"twinkle/data/bad/{loader}"
        self._reported: frozenset[int] = frozenset()

    def count(self, found: frozenset[int]) -> int:
        """The bad samples of all ranks so far.

        Args:
            found: Indices of all that this process has found.
        """
        for index in sorted(found - self._reported):
            if self._store.add(f"{self._prefix}/{index}", 1) == 1:  # a peer that sees the same rows finds it too
                self._store.add(f"{self._prefix}/all", 1)
        self._reported |= found
        return int(self._store.add(f"{self._prefix}/all", 0))
