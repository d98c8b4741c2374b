"""The choice of the rows of the next batch, and the sorted numbers that the choices share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twinkle_remote.streams.schedule.chunk_table import FINISHED

if TYPE_CHECKING:
    from twinkle_remote.streams.schedule.chunk_table import ChunkTable

_CHUNK_BITS = 32
_TICK_BITS = 48
_CHUNK_MASK = (1 << _CHUNK_BITS) - 1
_TICK_MASK = (1 << _TICK_BITS) - 1


class DeliveryOrder(Protocol):
    """Chooses the finished rows of the next batch.

    Attributes:
        is_by_batch: Whether rows may be begun by the batch of the source that they are in; else by those before them.
    """

    is_by_batch: bool

    def opened(self, batch: int, first: int, count: int) -> None:
        """A batch of the source arrived; its rows are [first, first + count)."""

    def begun(self, chunk: int) -> None:
        """A chunk's first stage began."""

    def finished(self, chunk: int) -> None:
        """A chunk's last stage is done."""

    def withdrawn(self, chunk: int) -> None:
        """A begun chunk starts again or is given up; called while it still has its old state."""

    def gone(self, first: int, count: int, batch: int) -> None:
        """Rows that will never be delivered."""

    def ready(self, version: int, left: int, at_end: bool) -> bool:
        """Whether a batch can be delivered.

        Args:
            version: The version now.
            left: Rows that are not delivered and not gone.
            at_end: Whether the source has no more rows.
        """

    def room(self, chunk: int, batches: int, version: int) -> int:
        """Rows of a chunk, the first ones, that may be begun under a hard bound of lag so that all are in time.

        Args:
            chunk: A chunk that waits for its first stage.
            batches: In how many of the next batches rows may be that are begun now.
            version: The version now.
        """

    def room_again(self, chunk: int, version: int) -> int:
        """The same for a chunk that was overtaken: rows that the batch can hold that the loop waits for."""

    def open_batches(self) -> int:
        """Batches of the source that are not delivered; 0 where they have no meaning."""

    def take(self) -> list[tuple[int, int]]:
        """The chunks of the batch that is ready, each with the number of its rows."""


def sort_key(*parts: int, tick: int, chunk: int) -> int:
    """One number that sorts as its parts, then by tick, and names a chunk.

    Args:
        *parts: Each in [0, 2**48 - 1]; the first counts most.
        tick: The chunk's tick.
        chunk: The chunk.
    """
    key = 0
    for part in (*parts, tick):
        key = key << _TICK_BITS | part
    return key << _CHUNK_BITS | chunk


def leading(key: int) -> int:
    """The part of a sort key that counts most."""
    return key >> (_TICK_BITS + _CHUNK_BITS)


def chunk_of(key: int) -> int:
    """The chunk that a sort key names."""
    return key & _CHUNK_MASK


def is_current(key: int, chunks: ChunkTable) -> bool:
    """Whether the chunk of a sort key is finished and still the one that the key was made for."""
    chunk = chunk_of(key)
    tick = key >> _CHUNK_BITS & _TICK_MASK
    return chunks.count[chunk] > 0 and chunks.state[chunk] == FINISHED and chunks.tick[chunk] == tick
