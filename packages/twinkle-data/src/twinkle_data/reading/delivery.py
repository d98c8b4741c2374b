"""The result of reading one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinkle_data.batch import BatchInfo


@dataclass(slots=True)
class Delivery:
    """The result of reading one step.

    Attributes:
        info: Position and rows of the batch.
        payload: What the loop gets.
        bad: Indices of the samples that could not be read.
        source: State of an iterable source after these rows.
        last: These are the last rows of the epoch.
        rows_digest: Digest of the global batch, where every rank reads all of it, at some steps; ranks compare it.
        order_digest: Digest of an order that the dataset has made during the first step of a process.
        carried: What a pass in a loader process has changed on its copy of a stream; with the last rows of an epoch.
    """

    info: BatchInfo
    payload: Any
    bad: tuple[int, ...] = ()
    source: Any = None
    last: bool = False
    rows_digest: str = ""
    order_digest: str = ""
    carried: dict[str, Any] | None = None

    def pin_memory(self) -> Delivery:
        """Copy the tensors into page-locked memory, where there is an accelerator; torch's loader calls this."""
        import torch
        from torch.utils.data._utils.pin_memory import pin_memory

        if torch.accelerator.is_available():
            self.payload = pin_memory(self.payload)  # type: ignore[no-untyped-call]  # torch's own, untyped
        return self
