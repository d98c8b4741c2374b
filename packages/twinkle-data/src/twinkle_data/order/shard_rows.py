"""The order of rows in a shuffled shard: permuted within windows of its rows.

The permutation of a window is a function of (seed, epoch, shard, window), so any position can be found by arithmetic,
and a rank reads the shards that it would read unshuffled. The windows of all open shards hold 4096 rows together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from twinkle_data.order.permutation import derive, derive_each, mix_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rows in the windows of all open shards: so many may be in memory.
ROWS: Final = 4096
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_LAST: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_CELLS: Final = 1 << 18


def window_of(open_shards: int) -> int:
    """Rows in a window of each shard, with so many of them open."""
    return max(ROWS // open_shards, 1)


def permutations(
    seed: int,
    epoch: int,
    shards: NDArray[np.int64],
    windows: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The permutation of each of several windows, as the rows of one array; a short window has `size` columns.

    Args:
        seed: Seed of the order.
        epoch: The epoch.
        shards: The shard of each window.
        windows: Its number in its shard.
        sizes: Its rows, at least 1.
    """
    codes = (shards.astype(np.uint64) << np.uint64(32)) + windows.astype(np.uint64)
    keys = np.array(derive_each(derive(seed, 4, epoch), codes), dtype=np.uint64)
    columns = np.arange(int(sizes.max()), dtype=np.uint64)
    hashes = mix_array(columns * _GOLDEN + keys[:, None])
    hashes[columns >= sizes.astype(np.uint64)[:, None]] = _LAST
    return np.argsort(hashes, axis=1, kind="stable")


def permuted(
    seed: int,
    epoch: int,
    shards: NDArray[np.int64],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    window: int,
) -> NDArray[np.int64]:
    """The row at each offset of a shuffled shard.

    Args:
        seed: Seed of the order.
        epoch: The epoch.
        shards: The shard of each offset.
        offsets: The offsets.
        lengths: Rows of every shard.
        window: Rows of a window.
    """
    numbers, within = np.divmod(offsets, window)
    keys = shards << np.int64(32) | numbers
    distinct, which = np.unique(keys, return_inverse=True)
    found = np.empty(len(offsets), dtype=np.int64)
    each = max(_CELLS // window, 1)
    order = np.argsort(which, kind="stable")
    edges = np.searchsorted(which[order], np.arange(0, len(distinct) + each, each))
    for first, (start, stop) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        few = distinct[first * each : (first + 1) * each]
        own, number = few >> np.int64(32), few & np.int64(0xFFFFFFFF)
        sizes = np.minimum(lengths[own] - number * window, window)
        rows = order[start:stop]
        table = permutations(seed, epoch, own, number, sizes)
        found[rows] = numbers[rows] * window + table[which[rows] - first * each, within[rows]]
    return found
