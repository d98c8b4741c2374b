"""The intake of a stage: what it takes at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intake:
    """The intake of a stage on one data rank: what it takes at a time.

    Attributes:
        lane: Calls of the stages of one pool with the same lane are counted together.
        calls: Calls of the lane at a time, at or above 1; the same for all its stages.
        is_shared_out: Whether a call takes many rows: what waits, up to the share of a batch that the synchronous loop
            would give the data rank. Else it takes one.
    """

    lane: int = 0
    calls: int = 1
    is_shared_out: bool = True

    def most_rows(self, batch: int, data_ranks: int) -> int:
        """Rows of a call, at most.

        Args:
            batch: Rows of a batch of the loop.
            data_ranks: Data ranks of the stage's component.
        """
        return max(1, -(-batch // data_ranks)) if self.is_shared_out else 1


def lanes_of(intakes: list[Intake]) -> list[int]:
    """Calls at a time of each lane of a pool, from those of its stages."""
    calls = {intake.lane: intake.calls for intake in intakes}
    return [calls.get(lane, 1) for lane in range(max(calls, default=0) + 1)]
