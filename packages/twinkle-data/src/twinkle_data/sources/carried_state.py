"""The changes of an iterable without a state of its own from pass to pass: a counter of epochs, a generator.

A loader process has a copy of the iterable, which ends with it. So the changes of a pass go back to the loader, and
into its state. Else each process would begin with the first pass again.
"""

from __future__ import annotations

import random
from typing import Any

from twinkle_data.order.generator_states import generators_in, restore, saved
from twinkle_data.order.moving_parts import MovingParts


class CarriedState:
    """The numbers, short lists and generators of an iterable.

    Args:
        dataset: The iterable, before its first pass.
    """

    def __init__(self, dataset: object) -> None:
        self._parts = MovingParts(dataset)
        self._generators = [one for one in generators_in(dataset) if not isinstance(one, random.SystemRandom)]
        self._first = saved(self._generators)

    def now(self) -> dict[str, Any]:
        """The changes since then, as JSON values; empty where there are none."""
        found: dict[str, Any] = {}
        moved = self._parts.moved_short()
        if moved:
            found["attributes"] = moved
        states = saved(self._generators)
        if states != self._first:
            found["generators"] = states
        return found

    def set(self, state: dict[str, Any]) -> None:
        """Make the iterable what it was when `now` was asked.

        Raises:
            StateMismatchError: The iterable has other generators or attributes.
        """
        self._parts.restore(state.get("attributes", {}))
        restore(self._generators, state.get("generators", self._first))
