"""Generators that a dataset holds itself: each loader process has a copy in the same state, so processes draw alike.

A loader seeds the global generators, and leaves objects of the user alone: a generator may decide an order that all
processes have to share. So a process that has read two steps reports the ones that were drawn from in the second one.
In the first one an order may have been made.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from twinkle_data.order.generator_states import generators_in, saved

if TYPE_CHECKING:
    from collections.abc import Iterable

_STEPS: Final = 2

DREW_ALIKE: Final = (
    "samples draw from a {drew} that {held} holds, and each of num_workers={workers} loader processes has a copy of "
    "it in the same state: unless it is seeded for each sample, they draw the same numbers, in each epoch. Use "
    "np.random.default_rng(sample_seed()) in __getitem__ or the global generators, which the loader seeds; or "
    "seed it in worker_init_fn"
)


class OwnGenerators:
    """Watches the generators of a loader process's dataset and functions, over the first steps.

    Args:
        objects: The objects whose code runs when a step is read.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._objects = list(objects)
        self._steps = 0
        self._before: list[tuple[Any, list[Any], str]] = []

    def begin(self) -> None:
        """Note the states before a step."""
        self._steps += 1
        if self._steps == _STEPS:
            self._before = [
                (one, saved([one]), type(held).__name__)
                for held in self._objects
                for one in generators_in(held, lambda _: True)
                if not isinstance(one, random.SystemRandom)
            ]

    def drawn(self) -> tuple[str, str] | None:
        """The kind and the holder of a generator that the step drew from; None where there is none."""
        before, self._before = self._before, []
        for one, state, holder in before:
            if saved([one]) != state:
                return type(one).__name__, holder
        return None
