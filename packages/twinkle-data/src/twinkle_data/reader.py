"""Reading one step: from index lists to the batch that a loop sees, in whichever process that happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_data.batch import Batch, BatchInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_data.plan import Step
    from twinkle_data.samples import Sampling


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


class Reader:
    """Reads the samples of a step and makes a batch of them; picklable when its parts are.

    Args:
        sampling: How samples are read, seeded and, where bad, dealt with.
        collate: Makes what the loop sees of a `Batch`; None keeps the batch.
        sharded: The rows are one rank's share.
    """

    def __init__(
        self, sampling: Sampling, collate: Callable[[Batch[Any]], Any] | None, *, sharded: bool = False
    ) -> None:
        self._sampling = sampling
        self._collate = collate
        self._sharded = sharded

    def read(self, step: Step) -> Delivery:
        """Read one step.

        Raises:
            BadSampleError: A sample cannot be read, and the policy is not to go on without it.
        """
        rows = self._sampling.read(step.epoch, step.indices)
        hidden = {*step.fillers, *rows.masked}
        valid = [row not in hidden for row in range(len(rows.samples))]
        batch: Batch[Any] = Batch(
            rows.samples,
            epoch=step.epoch,
            position=step.position,
            indices=rows.indices,
            valid=valid,
            sharded=self._sharded,
        )
        info = BatchInfo(step.epoch, step.position, rows.indices, valid, step.rows)
        payload: Any = batch if self._collate is None else self._collate(batch)
        return Delivery(info, payload, rows.bad)
