"""Simulated runs, against a discrete model of the same load that was written without this schedule."""

from __future__ import annotations

import random
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_remote.streams.options import StreamRules
from twinkle_remote.streams.schedule.intake import Intake
from twinkle_remote.streams.schedule.simulated.load import Load, SimulatedRun
from twinkle_remote.streams.schedule.simulated.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

SLOTS, BATCH, FAR = 64, 32, 10**6


def of_ideal(run: SimulatedRun, mean: float) -> float:
    return run.rows_per_second * mean / SLOTS


def simulated(**options: Any) -> tuple[SimulatedRun, float]:
    draw = random.Random(1)
    seconds = [min(20.0, draw.lognormvariate(0.0, 1.0)) for _ in range(600 * BATCH)]
    mean = fmean(seconds)
    rules = StreamRules(rows=BATCH, **options)
    return simulate(rules, [SLOTS], [0], Load(lambda row, stage: seconds[row], [mean / SLOTS], len(seconds))), mean


@pytest.mark.parametrize(
    ("options", "share", "lag"),
    [
        ({"ahead": 0}, 0.09, 0),
        ({"ahead": 1}, 0.09, 1),
        ({"ahead": FAR, "order": "arrival", "max_lag": 1, "stale": "use"}, 0.52, 13),
        ({"ahead": FAR, "order": "arrival", "max_lag": 2, "stale": "use"}, 0.82, 21),
        ({"ahead": FAR, "order": "arrival", "max_lag": 4, "stale": "use"}, 0.99, 27),
        ({"ahead": FAR, "order": "source", "max_lag": 1}, 0.16, 1),
        ({"ahead": FAR, "order": "source", "max_lag": 2}, 0.22, 2),
        ({"ahead": FAR, "order": "source", "max_lag": 4}, 0.32, 4),
        ({"ahead": FAR, "order": "source", "max_lag": 8}, 0.51, 8),
    ],
)
def test_share_of_the_ideal_and_worst_lag(options: dict[str, Any], share: float, lag: int) -> None:
    run, mean = simulated(**options)
    assert of_ideal(run, mean) == pytest.approx(share, abs=0.03)
    assert run.worst_lag <= lag + 2
    assert run.redone == run.dropped == 0
    assert run.rows == 600 * BATCH


def test_what_is_too_old_is_dropped_or_made_again() -> None:
    dropped, mean = simulated(ahead=FAR, order="arrival", max_lag=1, stale="drop")
    assert dropped.dropped > 0
    assert dropped.worst_lag == 1
    assert dropped.rows + dropped.dropped == 600 * BATCH
    redone, _ = simulated(ahead=FAR, order="arrival", max_lag=1, stale="redo")
    assert redone.redone > 0
    assert redone.rows == 600 * BATCH
    assert of_ideal(redone, mean) < of_ideal(dropped, mean) < 1.0


def test_stages_overlap() -> None:
    rules = StreamRules(rows=4, ahead=16)
    run = simulate(rules, [4, 2], [0, 1], Load(lambda row, stage: (2.0, 1.0)[stage], [0.25], 400))
    assert run.rows_per_second == pytest.approx(2.0, rel=0.05)
    assert run.busy == pytest.approx([1.0, 1.0], abs=0.05)
    assert run.training == pytest.approx(0.5, abs=0.03)


def test_whole_calls_take_as_long_as_their_slowest_shares() -> None:
    seconds = [1.0, 2.0, 4.0, 8.0, 1.0, 1.0]
    load = Load(lambda row, stage: seconds[row], [0.5], 6, versions=0.5, reading=0.25, read=2)
    run = simulate(StreamRules(rows=4), [2], [0], load)
    assert run.seconds == pytest.approx((12.0 + 2.0 + 0.5) + (1.0 + 1.0 + 0.5))
    assert (run.rows, run.batches, run.versions, run.lag) == (6, 2, 1, {0: 6})
    assert run.busy == pytest.approx([17.0 / (2 * run.seconds)])
    two = simulate(StreamRules(rows=4), [2, 1], [0, 1], Load(lambda row, stage: seconds[row], [0.0], 4))
    assert two.seconds == pytest.approx(12.0 + 15.0)


@pytest.mark.parametrize(("width", "seconds", "busy"), [(1, 12.0, 1.0), (3, 4.0, 1.0), (2, 6.0, 1.0)])
def test_a_rank_runs_as_many_calls_at_a_time_as_it_can(width: int, seconds: float, busy: float) -> None:
    rules = StreamRules(rows=1, ahead=11, at_once=3, order="arrival")
    run = simulate(rules, [1], [0], Load(lambda row, stage: 1.0, [0.0], 12), [width])
    assert run.seconds == pytest.approx(seconds)
    assert run.busy == pytest.approx([busy])
    assert (run.made, run.worked) == ([12], [12.0])


def test_stages_on_the_same_workers_wait_for_one_another() -> None:
    rules = StreamRules(rows=1, ahead=11, at_once=2)
    run = simulate(rules, [1], [0, 0], Load(lambda row, stage: (1.0, 3.0)[stage], [0.0], 10))
    assert run.seconds == pytest.approx(40.0)
    assert run.busy == pytest.approx([0.25, 0.75])


DRAWS: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda draw: 1.0,
    "uniform": lambda draw: draw.uniform(0.0, 2.0),
    "lognormal": lambda draw: draw.lognormvariate(0.0, 1.0),
}


@pytest.mark.parametrize("lengths", DRAWS)
@pytest.mark.parametrize(("ranks", "rows"), [(1, 8), (2, 10), (3, 4), (16, 8)])
@pytest.mark.parametrize("training", [0.01, 0.12])
@pytest.mark.parametrize("rules", [{"ahead": 3}, {"ahead": 32}, {"ahead": 32, "max_lag": 2}, {"order": "arrival"}])
def test_a_stream_without_options_is_not_slower_than_the_loop(
    lengths: str, ranks: int, rows: int, training: float, rules: dict[str, Any]
) -> None:
    draw = random.Random(2)
    seconds = [DRAWS[lengths](draw) for _ in range(20 * rows)]
    load = Load(lambda row, stage: seconds[row], [training], len(seconds), read=rows, call=max)
    ahead = StreamRules(**{"ahead": 17, **rules})
    loop = simulate(StreamRules(), [ranks], [0], load)
    run = simulate(ahead, [ranks], [0], load)
    assert run.rows_per_second >= 0.95 * loop.rows_per_second


@pytest.mark.parametrize("order", ["arrival", "source"])
def test_async_stages_gain_most_where_lengths_vary(order: Any) -> None:
    draw = random.Random(2)
    seconds = [DRAWS["lognormal"](draw) for _ in range(400)]
    load = Load(lambda row, stage: seconds[row], [0.01], 400, read=8, call=max)
    loop = simulate(StreamRules(), [1], [0], load)
    many = Intake(0, 64, is_shared_out=False)
    run = simulate(StreamRules(ahead=32, order=order), [1], [0], load, [64], [many])
    assert run.rows_per_second >= 3 * loop.rows_per_second
