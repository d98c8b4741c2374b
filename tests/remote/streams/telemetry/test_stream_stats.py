"""The figures of a stream and their table."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import StageStats, StreamStats, get, on, remote_class, remote_function, session, stream

TABLE = """\
1,280 rows in 4.0 s: 320.0 rows/s, 40 batches, 39 versions
                data ranks   rows  s/row  busy  waiting
Sampler.sample          64  1,300    0.2   97%       2%
Rewards.grade            8  1,290  0.002    4%      96%
the loop                    1,280  0.003   96%       3%
the loop read the source for 1% of the time
lag: mean 1.25, worst 3 (0: 50.0%, 2: 25.0%, 3: 25.0%)
rows made again 3, dropped 0, set aside 1"""


@remote_class()
class Worker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def work(self, rows: list[float]) -> list[float]:
        time.sleep(sum(rows))
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def more(self, rows: list[float]) -> list[float]:
        time.sleep(sum(rows))
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def fails(self, rows: list[float]) -> list[float]:
        if 0.02 in rows:
            raise ValueError("never")
        return rows


def test_figures_print_as_a_table() -> None:
    stages = {
        "Sampler.sample": StageStats(64, 1300, 0.97, 0.02, 0.2),
        "Rewards.grade": StageStats(8, 1290, 0.04, 0.96, 0.002),
    }
    lag = Counter({0: 640, 2: 320, 3: 320})
    told = StreamStats(1280, 4.0, 40, 39, stages, 0.96, 0.03, 0.01, lag, redone=3, set_aside=1)
    assert str(told) == TABLE
    assert (told.rows_per_second, told.mean_lag, told.worst_lag) == (320.0, 1.25, 3)
    assert "lag: mean 0.00, worst 0\n" in str(StreamStats())
    assert "more: 20.0%)" in str(StreamStats(lag=Counter(range(10))))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["local", "threads"])
@pytest.mark.parametrize("ahead", [0, 6])
def test_each_second_of_the_loop_and_of_a_data_rank_is_counted_once(mode: str, ahead: int) -> None:
    source = [[0.01] * 4 for _ in range(6)]
    with session(mode, groups=[DeviceGroup("two", 2, "CPU")]):
        worker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Worker)
        batches = stream(source, worker.work, worker.more, worker.work, rows=4, ahead=ahead)
        assert batches.stats() == StreamStats(
            stages={
                name: StageStats(batches.stats().stages[name].data_ranks, waiting=1.0)
                for name in ("Worker.work", "Worker.more", "Worker.work #2")
            }
        )
        with batches:
            for batch in batches:
                get(batch)
                time.sleep(0.02)
            ended = batches.stats()
            time.sleep(0.1)
        shown = batches.stats()
    assert shown == ended  # the time after the last batch does not count
    assert (shown.rows, shown.batches, shown.versions, shown.lag) == (24, 6, 0, {0: 24})
    assert shown.training + shown.waiting + shown.reading == pytest.approx(1.0)
    assert shown.training * shown.seconds >= 6 * 0.02
    ranks = 1 if mode == "local" else 2
    for stage in shown.stages.values():
        assert (stage.data_ranks, stage.rows) == (ranks, 24)
        assert stage.row_seconds >= 0.01
        assert stage.busy == pytest.approx(24 * stage.row_seconds / (ranks * shown.seconds), rel=0.02)
        assert sum(one.busy for one in shown.stages.values()) + stage.waiting <= 1.02


def test_rows_that_fail_are_not_among_those_that_went_through() -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        worker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Worker)
        rows = [0.0] * 20
        rows[9] = 0.02
        with stream([rows], worker.fails, rows=4, ahead=8, at_once=4) as batches:
            assert sum(len(get(batch)) for batch in batches) == 19
        shown = batches.stats()
    assert (shown.rows, shown.set_aside, shown.stages["Worker.fails"].rows) == (19, 1, 19)
