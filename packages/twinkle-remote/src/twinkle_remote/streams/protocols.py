"""Protocols of what a source may offer in addition to its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@runtime_checkable
class ResumableSource(Protocol):
    """A source that knows its position, as a DataLoader does."""

    def state_dict(self) -> Any:
        """The position after the batch that was given out last."""

    def load_state_dict(self, state: Any) -> None:
        """Go on from a position."""


@runtime_checkable
class NumberedRows(Protocol):
    """A batch, or the `info` of a loader, that knows of each row where it comes from.

    Attributes:
        epoch: The epoch, from 0.
        indices: Index in the dataset of each row.
        valid: False for fillers, which never enter a stage.
    """

    @property
    def epoch(self) -> int:
        """The epoch."""

    @property
    def indices(self) -> Sequence[int]:
        """The index of each row."""

    @property
    def valid(self) -> Sequence[bool]:
        """Whether each row is one of the data."""


@runtime_checkable
class InformedSource(Protocol):
    """A source that has the info of the batch that it gave out last."""

    @property
    def info(self) -> NumberedRows | None:
        """Position and rows of that batch."""


StreamState = dict[str, Any]
"""What `Stream.state_dict` returns; JSON-able where the source's own state is."""


def check_state(state: Mapping[str, Any]) -> None:
    """Refuse what is not the state of a stream.

    Raises:
        ValueError: It is not, or is one of a newer format.
    """
    if state.get("stream") != 1:
        raise ValueError(f"this is not the state of a stream: it has stream={state.get('stream')!r}, expected 1")
