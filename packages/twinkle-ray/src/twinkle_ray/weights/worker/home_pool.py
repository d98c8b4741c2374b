"""Memory of a target rank for the next version of its weights, in turns with the memory in which they live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_ray.weights.transport.home import Home
from twinkle_ray.weights.transport.packing import empty_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class HomePool:
    """Homes in this process's own memory; what was used in the sync before last is kept for this one."""

    def __init__(self) -> None:
        self._homes: list[Home] = []
        self._taken: list[Home] = []
        self._lived_in: list[Home] = []

    def begin(self, lived_in: Iterable[Home]) -> None:
        """Begin a sync.

        Args:
            lived_in: The homes in which tensors live now.
        """
        now = list(lived_in)
        self._homes = [home for home in self._homes if home in self._taken or home in self._lived_in or home in now]
        self._taken, self._lived_in = [], now

    def take(self, nbytes: int, device: torch.device) -> Home:
        """A home of this size in which no tensor lives."""
        for home in self._homes:
            fits = (home.buffer.numel(), home.buffer.device) == (nbytes, device)
            if fits and home not in self._lived_in and home not in self._taken:
                break
        else:
            home = Home(empty_bytes(nbytes, device))
            self._homes.append(home)
        self._taken.append(home)
        return home

    def clear(self) -> None:
        """Give back what no tensor lives in."""
        self._homes.clear()
        self._taken.clear()
        self._lived_in.clear()
