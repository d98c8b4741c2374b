"""Minibatches: a value, row by row, in one order for each epoch, as takes of it."""

from __future__ import annotations

import operator
import random
from itertools import count
from typing import TYPE_CHECKING, SupportsIndex, TypeVar

from twinkle_remote.lazy.lazy import Lazy
from twinkle_remote.lazy.table import rows_of_lazy
from twinkle_remote.rows.columns import count_rows
from twinkle_remote.sessions.seeding import session_seed
from twinkle_remote.tables.operations import take

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")
_made: dict[int, count[int]] = {}  # by session: the calls that drew a seed


def minibatches(
    value: T,
    rows: SupportsIndex,
    *,
    epochs: SupportsIndex = 1,
    shuffle: bool = True,
    seed: int | None = None,
    drop_last: bool = False,
) -> Iterator[T]:
    """Minibatches of the rows of a value, over one or several epochs.

    No minibatch has rows of two epochs, and no row is divided: a row of Rollouts is a prompt with its answers. The
    order depends only on the number of rows, the seed and the epoch. The function waits for the number of rows, not for
    the rows.

    Args:
        value: A value with rows; if it is lazy, the minibatches are lazy.
        rows: Rows of a minibatch, at least 1; the last one of an epoch may have fewer.
        epochs: Number of passes over all rows, at least 1.
        shuffle: Use a new order in each epoch; otherwise the order of the rows.
        seed: Seed of the order; None derives it from the session's seed and the number of earlier calls of this
            function.
        drop_last: Leave out a last minibatch of fewer rows.

    Raises:
        ValueError: A number is out of range, or with `drop_last` there are too few rows for one minibatch.
        TypeError: The value has no rows.
    """
    size, times = operator.index(rows), operator.index(epochs)
    if size < 1 or times < 1:
        raise ValueError(f"rows and epochs must be at least 1, got {size} and {times}")
    total = rows_of_lazy(value, "minibatches") if isinstance(value, Lazy) else count_rows(value, "minibatches")
    if drop_last and total < size:
        raise ValueError(
            f"of {total} rows drop_last=True leaves no minibatch of {size}: give fewer rows, or drop_last=False"
        )
    drawn = _drawn_seed() if seed is None and shuffle else seed

    def batches() -> Iterator[T]:
        for epoch in range(times):
            order = order_of(total, drawn or 0, epoch) if shuffle else range(total)
            for first in range(0, total - total % size if drop_last else total, size):
                part = order[first : first + size]
                yield take(value, slice(first, first + len(part)) if isinstance(part, range) else part)

    return batches()


def order_of(total: int, seed: int, epoch: int) -> Sequence[int]:
    """The order of an epoch: the numbers of all rows, each once; `seed` is any integer, `epoch` counts from 0."""
    return random.Random(f"minibatches {total} {operator.index(seed)} {epoch}").sample(range(total), total)


def _drawn_seed() -> int:
    seed, session = session_seed()
    if seed is None:
        return random.SystemRandom().getrandbits(64)
    number = next(_made.setdefault(session, count()))
    return random.Random(f"minibatches {seed} {number}").getrandbits(64)
