"""Reads rows of shuffled shards: a window of rows is read in ascending order, and kept until its rows are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twinkle_data.reading.randomness import epoch_of_reading, seed_again, seed_for
from twinkle_data.reading.written_again import WrittenAgain
from twinkle_data.sources.open_shards import ShardEndedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_data.sources.open_shards import OpenShards

# Seconds to seed the generators for a row that is read before its turn.
_SEEDING_S: Final = 1e-5


class ShuffledShards:
    """Rows of shuffled shards: those before a row in its window are read with it, and kept until they are asked for.

    Where this process takes only some rows of a shard, and a shard opens faster than it reads the others, it is opened
    at each row instead. Each row draws from its own randomness, whenever it is read.

    Args:
        shards: The open shards.
        window: Rows of a window.
        key: What the randomness of a row derives from, with the seed and the epoch: its shard and offset.
        share: The share of the rows of a shard that this process takes, in (0, 1].
    """

    def __init__(
        self, shards: OpenShards, window: int, key: Callable[[int, int], tuple[int, ...]], share: float = 1.0
    ) -> None:
        self._shards = shards
        self._window = window
        self._key = key
        self.share = share
        self._epoch: int | None = None
        self._written_again = WrittenAgain()
        # By shard: the window, the offset after the last row that was read of it, and the rows that are kept.
        self._kept: dict[int, tuple[int, int, dict[int, Any]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ShuffledShards, (self._shards, self._window, self._key, self.share)

    def take(self, shard: int, offset: int) -> Any:
        """Read one row.

        Raises:
            ShardEndedError: The shard is shorter.
            WrittenAgainError: It wrote to a row after it gave it.
        """
        if epoch_of_reading() != self._epoch:
            self._epoch = epoch_of_reading()
            self._kept.clear()
        number = offset // self._window
        window, after, rows = self._kept.get(shard, (-1, 0, {}))
        if window != number:
            window, after, rows = number, number * self._window, {}
        if offset in rows:
            return rows.pop(offset)
        if offset < after or not self._keeping_pays():
            return self._shards.take(shard, offset)
        self._written_again.begin()
        if offset > after:
            self._read_before(shard, window, range(after, offset), rows)
        row = self._shards.take(shard, offset)
        self._written_again.check([row], f"shard {shard}")
        self._written_again.end()
        self._kept[shard] = window, offset + 1, rows
        return row

    def _read_before(self, shard: int, window: int, offsets: range, rows: dict[int, Any]) -> None:
        """Read and keep the rows before one that is asked for, each from its own randomness."""
        try:
            for at in offsets:
                seed_for(*self._key(shard, at))
                rows[at] = self._shards.take(shard, at)
                self._written_again.keep(rows[at])
                self._kept[shard] = window, at + 1, rows
        except ShardEndedError:
            raise
        except Exception:  # another row's: this one may be read all the same
            self._shards.drop(shard)
        finally:
            seed_again()

    def drop(self, shard: int) -> None:
        """Forget the rows of a shard."""
        self._kept.pop(shard, None)

    def close(self) -> None:
        """Forget all rows."""
        self._kept.clear()

    def _keeping_pays(self) -> bool:
        if self.share >= 1.0:
            return True
        opening, reading = self._shards.opening_s, self._shards.reading_s
        return opening is None or reading is None or (reading + _SEEDING_S) / self.share < opening
