"""The contracts of loading: the position, the reader of a step, the pipeline and the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_data.cursor import Cursor, Identity
    from twinkle_data.order.steps import DataShard, Step, StepPlan
    from twinkle_data.reading.delivery import Delivery


class Position:
    """The position of a loader: deliveries move it, and a restart reads it.

    Another thread may save a state meanwhile, so cursor and source are one value.

    Attributes:
        at: Cursor and source.
    """

    __slots__ = ("at",)

    def __init__(self, cursor: Cursor, source: Any = None) -> None:
        self.at: tuple[Cursor, Any] = cursor, source

    @property
    def cursor(self) -> Cursor:
        """The first sample that was not delivered."""
        return self.at[0]

    @property
    def source(self) -> Any:
        """State of a stream at that position."""
        return self.at[1]


class Pipeline(Protocol):
    """An iterator of deliveries from a position on."""

    def __next__(self) -> Delivery: ...

    def close(self) -> None:
        """End the processes that run for it; the next step is then the first one that was not delivered."""


class Engine(Protocol):
    """Delivers the batches of one dataset.

    Attributes:
        identity: What determines the order.
        plan: The steps of each epoch.
        resumable: It can go to any position; otherwise only to the start of an epoch.
        keeps: A pipeline is kept when a loop is left, with what it has read ahead.
        endless: A pipeline goes on after the end of an epoch.
        whole: It delivers global batches, whoever asks.
    """

    identity: Identity
    plan: StepPlan
    resumable: bool
    keeps: bool
    endless: bool
    whole: bool

    def carried(self) -> dict[str, Any]:
        """Return the changes of passes on a stream that has no state of its own; nothing for other datasets."""

    def carry(self, state: dict[str, Any]) -> None:
        """Change the stream in the same way."""

    def check_lengths(self) -> None:
        """Check that the dataset is as long as it was when the engine was made."""

    def run(self, position: Position, shard: DataShard, quarantine: Iterable[int], *, whole: bool = False) -> Pipeline:
        """Deliver from a position on, at least to the end of its epoch.

        Args:
            position: The position; it is read again at each restart.
            shard: The data rank whose rows are delivered.
            quarantine: Indices of bad samples.
            whole: Batches are part of a global batch that others see, so they are not marked as one rank's share.
        """


class StepReader(Protocol):
    """Reads steps; picklable."""

    @property
    def dataset(self) -> Any:
        """The dataset as the user gave it."""

    @property
    def user_code(self) -> list[Any]:
        """The objects whose code runs when a step is read: a dataset that is not plain, and a collate function."""

    def read(self, step: Step) -> Delivery:
        """Read one step."""
