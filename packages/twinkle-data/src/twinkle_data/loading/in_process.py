"""Reads steps in the process of the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_data.loading.protocol import StepReader
    from twinkle_data.order.steps import Step
    from twinkle_data.reading.delivery import Delivery


class Direct:
    """A pipeline that reads each step when the loop asks for it.

    Args:
        reader: Reads one step.
        steps: Returns the steps from the first undelivered one on, at each call.
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
            # The next call tries the same step again.
            self._running = None
            raise
        return delivery.pin_memory() if self._pin_memory else delivery

    def close(self) -> None:
        """Drop the running order: no process runs for it."""
        self._running = None
