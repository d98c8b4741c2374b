"""Predictions of `explain`: exact where a formula tells them, and near what sleeping workers show in the same run.

How near is a figure of benchmarks/bench_streams.py: a busy machine holds up the workers that this one measures.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import StreamStats, get, on, remote_class, remote_function, session, stream
from twinkle_remote.streams.telemetry.forecast import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLOTS, BATCH, BATCHES = 16, 16, 32
slept: list[float] = []  # by the workers, which are threads here


@remote_class()
class Sleeper:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def sleep(self, seconds: list[float]) -> list[float]:
        began = time.perf_counter()
        time.sleep(sum(seconds))
        slept.append((time.perf_counter() - began) / len(seconds))
        return seconds

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def doze(self, seconds: list[float]) -> list[float]:
        await asyncio.sleep(sum(seconds))
        return seconds

    @remote_function(dispatch="slice_dp", collect="flatten")
    def check(self, seconds: list[float]) -> list[float]:
        time.sleep(0.005)
        return seconds


@pytest.fixture(scope="module")
def sleeper() -> Iterator[Sleeper]:
    with session("threads", groups=[DeviceGroup("sleepers", SLOTS, "CPU")]):
        yield on("sleepers", DeviceMesh.from_sizes(dp_size=SLOTS)).create(Sleeper)


def durations(median: float) -> Iterator[list[float]]:
    """Batches without an end: 64 quantiles of a lognormal distribution with sigma 1, over and over in one order."""
    normal = statistics.NormalDist()
    seconds = [median * math.exp(normal.inv_cdf((place + 0.5) / 64)) for place in range(64)]
    random.Random(0).shuffle(seconds)
    rows = cycle(seconds)
    while True:
        yield list(islice(rows, BATCH))


def misses(predicted: StreamStats, shown: StreamStats) -> list[str]:
    """The figures that are far from those of the run."""
    waste = [(run.redone + run.dropped) / run.rows for run in (predicted, shown)]
    busy = [run.stages["Sleeper.sleep"].busy for run in (predicted, shown)]
    figures = {
        "throughput": (predicted.rows_per_second, pytest.approx(shown.rows_per_second, rel=0.5)),
        "mean lag": (predicted.mean_lag, pytest.approx(shown.mean_lag, rel=0.5)),
        "training": (predicted.training, pytest.approx(shown.training, rel=0.5)),
        "busy": (busy[0], pytest.approx(busy[1], rel=0.5)),
        "waste": (waste[0], pytest.approx(waste[1], abs=0.25)),  # some 90 rows of 500
    }
    return [f"{name}: {told} predicted, {seen}" for name, (told, seen) in figures.items() if told != seen]


def one_run(sleeper: Sleeper) -> list[str]:
    """What was not predicted, by its own measurements and by durations that the workers themselves measured."""
    median, steps = 0.05, list[float]()
    slept.clear()
    with stream(
        durations(median), sleeper.sleep, rows=BATCH, ahead=10**6, order="arrival", max_lag=1, stale="drop"
    ) as batches:
        for batch in islice(batches, BATCHES):
            get(batch)
            began = time.perf_counter()
            time.sleep(median * BATCH / SLOTS)
            steps.append((time.perf_counter() - began) / BATCH)
            batches.publish()
        shown = batches.stats()
    assert shown.rows == BATCH * BATCHES
    assert shown.dropped > 0
    by_hand = batches.explain({"Sleeper.sleep": slept}, statistics.fmean(steps))
    return misses(batches.explain(), shown) + misses(by_hand, shown)


def in_one_run(run: Callable[[], list[str]]) -> None:
    """Fail unless one of at most five runs shows what was predicted: a busy machine holds some of them up."""
    missed = [run()]
    while missed[-1]:
        assert len(missed) < 5, missed
        missed.append(run())


@pytest.mark.slow
def test_throughput_lag_and_waste_are_predicted(sleeper: Sleeper) -> None:
    in_one_run(lambda: one_run(sleeper))


@pytest.mark.slow
def test_the_synchronous_loop_is_predicted(sleeper: Sleeper) -> None:
    def run() -> list[str]:
        source = list(islice(durations(0.1), 6))  # long beside what a busy machine adds
        with stream(source, sleeper.sleep, rows=2 * BATCH) as batches:
            for batch in batches:
                get(batch)
                time.sleep(0.25)
                batches.publish()
            shown = batches.stats()
        assert shown.rows == 6 * BATCH
        assert shown.lag == {0: 6 * BATCH}
        assert shown.waiting > 0.5
        return misses(batches.explain(), shown)

    in_one_run(run)


@pytest.mark.slow
def test_calls_side_by_side_are_predicted(sleeper: Sleeper) -> None:
    options: dict[str, Any] = {"ahead": 10 * BATCH, "at_once": 4, "order": "arrival"}

    def run() -> list[str]:
        source = list(islice(durations(0.05), 30))
        with stream(source, sleeper.doze, sleeper.check, rows=BATCH, **options) as batches:
            for batch in batches:
                get(batch)
                time.sleep(0.03)
                batches.publish()
            shown = batches.stats()
        side_by_side = shown.stages["Sleeper.doze"]
        assert side_by_side.busy < side_by_side.row_seconds * side_by_side.rows / (shown.seconds * SLOTS)
        predicted = batches.explain()
        figures = {"throughput": (predicted.rows_per_second, pytest.approx(shown.rows_per_second, rel=0.5))}
        for name, stage in shown.stages.items():
            told = predicted.stages[name]
            figures[f"{name} busy"] = told.busy, pytest.approx(stage.busy, abs=0.3)
            figures[f"{name} waiting"] = told.waiting, pytest.approx(stage.waiting, abs=0.3)
        return [f"{name}: {told} predicted, {seen}" for name, (told, seen) in figures.items() if told != seen]

    in_one_run(run)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 40), st.floats(0.001, 10.0), st.floats(0.0, 1.0))
def test_the_synchronous_loop_of_equal_rows_is_predicted_exactly(
    sleeper: Sleeper, rows: int, seconds: float, training: float
) -> None:
    batches = stream([[0.0] * rows], sleeper.sleep, rows=rows)
    predicted = batches.explain({"Sleeper.sleep": [seconds]}, training, rows * 8)
    of_a_batch = -(-rows // SLOTS) * seconds + rows * training
    assert predicted.rows_per_second == pytest.approx(rows / of_a_batch)
    assert predicted.training == pytest.approx(rows * training / of_a_batch)
    assert predicted.lag == {0: rows * 8}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0.001, 10.0), st.floats(0.0001, 1.0))
@pytest.mark.slow
def test_a_stream_ahead_is_as_fast_as_its_slower_side(sleeper: Sleeper, seconds: float, training: float) -> None:
    batches = stream([[0.0] * SLOTS], sleeper.sleep, rows=SLOTS, ahead=8 * SLOTS, order="arrival")
    predicted = batches.explain({"Sleeper.sleep": [seconds]}, training, SLOTS * 64)
    slower = max(seconds / SLOTS, training)
    one_batch = seconds + training * SLOTS  # the first is made before the loop works, and the last used after it
    assert SLOTS * 64 / (slower * SLOTS * 64 + one_batch) <= predicted.rows_per_second * 1.0001
    assert predicted.rows_per_second <= 1.0001 / slower


def test_without_durations_there_is_nothing_to_predict(sleeper: Sleeper) -> None:
    with pytest.raises(ValueError, match=r"Sleeper\.sleep.*explain\(durations="):
        stream([[0.0]], sleeper.sleep, rows=1, ahead=1).explain()


def test_given_durations_are_taken_at_even_distances() -> None:
    assert sorted(spread([3.0, 1.0, 2.0], 6, random.Random(0))) == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert sorted(spread(list(range(9)), 3, random.Random(0))) == [1, 4, 7]
