"""Streams over sleeping samplers, against the best possible under the same rule and against the synchronous loop.

    python benchmarks/bench_streams.py [--median 0.06] [--batches 80] [--skip-run]

The load: 64 data ranks in threads, batches of 32 rows, durations lognormal with sigma 1 and at most 20 medians, a loop
that trains as long as all ranks need for a batch. The best possible is a simulation of the same schedule with the same
durations and no overhead. The table of rules is simulated. The bookkeeping is measured on the schedule alone: 8,192
simulated data ranks with 10^6 rows at work.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stream
from twinkle_remote.streams.rules import StreamRules
from twinkle_remote.streams.schedule.scheduler import Scheduler
from twinkle_remote.streams.schedule.simulation import SimulatedRun, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS, BATCH, CAP = 64, 32, 20.0
RULES: Sequence[dict[str, Any]] = (
    {"ahead": 0},
    {"ahead": 1},
    *({"ahead": 10**6, "order": "arrival", "max_lag": lag, "stale": "use"} for lag in (1, 2, 4)),
    *({"ahead": 10**6, "order": "source", "max_lag": lag, "stale": "wait"} for lag in (1, 2, 4, 8)),
    *({"ahead": 10**6, "order": "arrival", "max_lag": lag, "stale": "wait"} for lag in (1, 2, 4, 8)),
    *({"ahead": 10**6, "order": "arrival", "max_lag": lag, "stale": "redo"} for lag in (1, 2, 4)),
    *({"ahead": 10**6, "order": "arrival", "max_lag": lag, "stale": "drop"} for lag in (1, 2, 4)),
)


@remote_class()
class Sleeper:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def sleep(self, seconds: list[float]) -> list[float]:
        time.sleep(sum(seconds))
        return [time.time()] * len(seconds)


def drawn(rows: int, median: float) -> list[float]:
    draw = random.Random(0)
    return [median * min(CAP, draw.lognormvariate(0.0, 1.0)) for _ in range(rows)]


def simulated(rules: StreamRules, seconds: Sequence[float]) -> SimulatedRun:
    training = statistics.fmean(seconds) / SLOTS
    return simulate(rules, [SLOTS], [0], lambda row, stage: seconds[row], training, len(seconds))


def table_of_rules() -> None:
    seconds = drawn(400 * BATCH, 1.0)
    ideal = SLOTS / statistics.fmean(seconds)
    print(f"{'rule':<62} of ideal  worst lag  redone  dropped")
    for options in RULES:
        run = simulated(StreamRules(rows=BATCH, **options), seconds)
        name = ", ".join(f"{key}={value}" for key, value in options.items())
        waste = [count / len(seconds) for count in (run.redone, run.dropped)]
        print(f"{name:<62} {run.rows_per_second / ideal:8.2f} {run.worst_lag:10} {waste[0]:7.0%} {waste[1]:8.0%}")


def real(sleeper: Sleeper, options: dict[str, Any], seconds: Sequence[float]) -> tuple[float, int]:
    """Rows a second, and the worst lag."""
    training = BATCH * statistics.fmean(seconds) / SLOTS
    source = [list(seconds[at : at + BATCH]) for at in range(0, len(seconds), BATCH)]
    began = time.perf_counter()
    with stream(source, sleeper.sleep, rows=BATCH, **options) as batches:
        for batch in batches:
            get(batch)
            time.sleep(training)
            batches.publish()
    return len(seconds) / (time.perf_counter() - began), batches.stats().worst_lag


def sleeping_samplers(median: float, batches: int) -> None:
    seconds = drawn(batches * BATCH, median)
    paced: dict[str, Any] = {"ahead": 10**6, "order": "arrival", "max_lag": 4, "stale": "use"}
    with session("threads", groups=[DeviceGroup("samplers", SLOTS, "CPU")]):
        sleeper = on("samplers", DeviceMesh.from_sizes(dp_size=SLOTS)).create(Sleeper)
        real(sleeper, paced, seconds[: 4 * BATCH])
        streamed, lag = real(sleeper, paced, seconds)
        part = seconds[: max(4, batches // 4) * BATCH]
        synchronous, _ = real(sleeper, {"ahead": 0}, part)
        best = simulated(StreamRules(rows=BATCH, **paced), seconds).rows_per_second
        print(f"streamed, capacity pacing 4: {streamed:.0f} rows/s, worst lag {lag}")
        print(f"  share of the best possible: {streamed / best:.3f} (aim 0.95)")
        print(f"  against the synchronous loop at {synchronous:.0f} rows/s: {streamed / synchronous:.1f}x (aim 8x)")
        rate, _ = real(sleeper, {"ahead": 512, "order": "arrival"}, [0.0] * 4096)
        print(f"  overhead of a row that takes no time: {1e6 / rate:.0f} us")
        print(f"  a row in the loop's hands after its return: {1e3 * latency(sleeper):.2f} ms (aim 1 ms)")


def latency(sleeper: Sleeper) -> float:
    """Median seconds from a stage's return to the loop that waits for it, one row at a time."""
    with stream([[0.02] for _ in range(100)], sleeper.sleep, rows=1, ahead=1, order="arrival", max_lag=0) as batches:
        return statistics.median(time.time() - get(batch)[0] for batch in batches)


def bookkeeping(ranks: int = 8192, at_once: int = 123, rows: int = 1_000_000) -> None:
    gc.collect()
    tracemalloc.start()
    rules = StreamRules(rows=1024, ahead=rows, order="arrival", max_lag=1000, stale="wait", at_once=at_once)
    schedule = Scheduler(rules, [ranks], [0])
    schedule.read(rows)
    chunks = []
    began = time.perf_counter()
    while (work := schedule.next_work()) is not None:
        chunks.append(work.chunk)
    given = time.perf_counter() - began
    held = tracemalloc.get_traced_memory()[0] - sum(map(int.__sizeof__, chunks)) - chunks.__sizeof__()
    print(f"{len(chunks)} rows at work on {ranks} data ranks: {held / rows:.0f} bytes a row")
    tracemalloc.stop()
    random.Random(0).shuffle(chunks)
    tracemalloc.start()
    began = time.perf_counter()
    for chunk in chunks:
        schedule.finished(chunk)
    finished = time.perf_counter() - began
    held += tracemalloc.get_traced_memory()[0]
    print(f"the same finished, by arrival and age: {held / rows:.0f} bytes a row (aim 200)")
    tracemalloc.stop()
    print(
        f"an event, with the tracing of memory: {1e6 * given / rows:.1f} us begun, {1e6 * finished / rows:.1f} us done"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--median", type=float, default=0.06, help="seconds of the median row")
    parser.add_argument("--batches", type=int, default=80)
    parser.add_argument("--skip-run", action="store_true", help="only the simulation and the bookkeeping")
    options = parser.parse_args()
    table_of_rules()
    if not options.skip_run:
        sleeping_samplers(options.median, options.batches)
    bookkeeping()


if __name__ == "__main__":
    main()
