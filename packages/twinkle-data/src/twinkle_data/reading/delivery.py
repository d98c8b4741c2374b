"""What reading a step gave, on its way to the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinkle_data.batch import BatchInfo


@dataclass(slots=True)
class Delivery:
    """What reading a step gave.

    Attributes:
        info: Where the batch belongs.
        payload: What the loop sees.
        bad: Indices of the samples that could not be read.
        source: Where an iterable source is behind these rows.
        last: Nothing is left behind these rows in the epoch.
    """

    info: BatchInfo
    payload: Any
    bad: tuple[int, ...] = ()
    source: Any = None
    last: bool = False

    def pin_memory(self) -> Delivery:
        """The same with its tensors in page-locked memory, where there is an accelerator; torch's loader calls this."""
        import torch
        from torch.utils.data._utils.pin_memory import pin_memory

        if torch.accelerator.is_available():
            self.payload = pin_memory(self.payload)  # type: ignore[no-untyped-call]  # torch's own, untyped
        return self
