"""The contracts of loading: where a loader is, what reads a step, and what delivers the steps from a position on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_data.cursor import Cursor, Identity
    from twinkle_data.order.steps import DataShard, Step, StepPlan
    from twinkle_data.reading.delivery import Delivery


class Position:
    """Where a loader is: moved by what it delivers, read by what begins anew.

    Attributes:
        cursor: The first sample that was not delivered.
        source: the stream's own state there.
    """

    __slots__ = ("cursor", "source")

    def __init__(self, cursor: Cursor, source: Any = None) -> None:
        self.cursor = cursor
        self.source = source


class Pipeline(Protocol):
    """Deliveries from a position on."""

    def __next__(self) -> Delivery: ...

    def close(self) -> None:
        """End what runs for it."""


class Engine(Protocol):
    """Delivers batches of one dataset.

    Attributes:
        identity: What the order is a function of.
        plan: Where steps begin and end.
        resumable: Any position can be come back to, rather than only the front of an epoch.
        keeps: What was read ahead is kept when a loop is left.
        endless: A pipeline goes on over the end of an epoch.
    """

    identity: Identity
    plan: StepPlan
    resumable: bool
    keeps: bool
    endless: bool

    def run(self, position: Position, shard: DataShard, quarantine: Iterable[int], *, whole: bool = False) -> Pipeline:
        """Deliver from a position on: at least to the end of its epoch.

        Args:
            position: Read again whenever reading begins anew.
            shard: Whose rows.
            quarantine: Indices that are known to be bad.
            whole: Batches are part of a global batch that others see, so they are not marked as one rank's share.
        """


class StepReader(Protocol):
    """Reads steps; picklable."""

    @property
    def dataset(self) -> Any:
        """What the user gave."""

    def read(self, step: Step) -> Delivery:
        """Read one step."""
