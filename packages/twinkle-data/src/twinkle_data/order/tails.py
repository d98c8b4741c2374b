"""The last rows of an epoch, where they do not fill a batch: number of steps, and rows of each rank."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

from twinkle_mesh import balanced_slice

Tail: TypeAlias = Literal["drop", "short", "pad"]
TAILS: tuple[str, ...] = get_args(Tail)


class RankRows(NamedTuple):
    """One data rank's rows of a global batch.

    Attributes:
        start: First row, in [0, rows].
        stop: One past the last.
        fillers: Rows of the same global batch that are repeated after them, and masked.
    """

    start: int
    stop: int
    fillers: tuple[int, ...] = ()


def check_batch_size(batch_size: int, data_world_size: int) -> None:
    """Check that a global batch size divides over the data ranks.

    Raises:
        ValueError: It does not; the message names the nearest sizes that do.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    if batch_size % data_world_size:
        below = batch_size // data_world_size * data_world_size
        near = " or ".join(str(size) for size in (below, below + data_world_size) if size)
        raise ValueError(
            f"batch_size={batch_size} is global and must be a multiple of data_world_size={data_world_size}; use {near}"
        )


def rows_of_step(left: int, batch_size: int, tail: Tail) -> int:
    """Rows of the next global batch with `left` rows left in the epoch; 0 when the epoch is over."""
    if left >= batch_size:
        return batch_size
    return 0 if tail == "drop" else max(left, 0)


def steps_left(left: int, batch_size: int, tail: Tail) -> int:
    """Number of global batches that `left` rows make, the same on every rank."""
    full, rest = divmod(max(left, 0), batch_size)
    return full + (rest > 0 and tail != "drop")


def share(rows: int, data_world_size: int, data_rank: int, tail: Tail) -> RankRows:
    """The rows of one data rank: a balanced split; `pad` fills each rank up to ceil(rows / data_world_size).

    Args:
        rows: Rows of the global batch, at least 1.
        data_world_size: Number of data ranks.
        data_rank: In [0, data_world_size - 1].
        tail: Only `pad` adds fillers.
    """
    own = balanced_slice(rows, data_world_size, data_rank)
    if tail != "pad":
        return RankRows(own.start, own.stop)
    missing = -(-rows // data_world_size) - (own.stop - own.start)
    # A rank repeats its own last row; a rank without a row takes one of another rank.
    filler = own.stop - 1 if own.stop > own.start else data_rank % rows
    return RankRows(own.start, own.stop, (filler,) * missing)
