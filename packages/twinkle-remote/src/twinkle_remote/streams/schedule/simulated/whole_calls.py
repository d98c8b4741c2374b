"""A simulated run of the synchronous loop: each batch is one call of each stage, divided evenly over data ranks."""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from typing import TYPE_CHECKING

from twinkle_mesh import balanced_slice
from twinkle_remote.streams.schedule.simulated.load import SimulatedRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.streams.schedule.simulated.load import Load


def simulate_whole_calls(pools: Sequence[int], stages: Sequence[int], load: Load, batch: int) -> SimulatedRun:
    """Run the synchronous loop under a virtual clock; the arguments are those of `simulate`."""
    now = trained = read = 0.0
    published, batches, training = 0.0, 0, cycle(load.training)
    worked = [0.0] * len(stages)
    for first in range(0, load.rows, batch):
        rows = range(first, min(first + batch, load.rows))
        now += load.reading * batch / (load.read or batch)
        read += load.reading * batch / (load.read or batch)
        there = [now] * len(rows)
        free = [[now] * pool for pool in pools]
        for stage, pool in enumerate(stages):
            for rank in range(pools[pool]):
                share = balanced_slice(len(rows), pools[pool], rank)
                if share.start < share.stop:
                    seconds = load.call([load.duration(row, stage) for row in rows[share]])
                    worked[stage] += seconds
                    free[pool][rank] = max(free[pool][rank], *there[share]) + seconds
                    there[share] = [free[pool][rank]] * (share.stop - share.start)
        step = len(rows) * next(training)
        now = max(there) + step
        trained += step
        published += load.versions
        batches += 1
    whole = now or 1.0
    busy = [seconds / (whole * pools[pool]) for seconds, pool in zip(worked, stages, strict=True)]
    return SimulatedRun(
        now,
        load.rows,
        batches,
        int(published),
        Counter({0: load.rows}),
        0,
        0,
        [load.rows] * len(stages),
        worked,
        busy,
        [max(0.0, 1.0 - sum(b for b, other in zip(busy, stages, strict=True) if other == pool)) for pool in stages],
        trained / whole,
        read / whole,
    )
