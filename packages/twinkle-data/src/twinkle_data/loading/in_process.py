"""Steps that are read in the loop's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_data.loading.protocol import StepReader
    from twinkle_data.order.steps import Step
    from twinkle_data.reading.delivery import Delivery


class Direct:
    """Deliveries of steps that are read in the loop itself, when they are asked for.

    Args:
        reader: Reads one step.
        steps: Gives the steps from the first undelivered one on, whenever it is called.
        pin_memory: Copy tensors into page-locked memory.
    """

    def __init__(self, reader: StepReader, steps: Callable[[], Iterator[Step]], *, pin_memory: bool = False) -> None:
        self._reader = reader
        self._steps = steps
        self._pin_memory = pin_memory
        self._running: Iterator[Step] | None = None

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        if self._running is None:
            self._running = self._steps()
        try:
            delivery = self._reader.read(next(self._running))
        except BaseException:
            # A step that could not be read stays the next one.
            self._running = None
            raise
        return delivery.pin_memory() if self._pin_memory else delivery

    def close(self) -> None:
        """Nothing is open."""
