"""What the options of a stream promise, for streams that work ahead and for those that do not."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import Lazy, get, on, remote_class, remote_function, session, stream, submit
from twinkle_remote.streams import ahead as ahead_module

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = [list(range(at, at + 4)) for at in range(0, 40, 4)]
leave = threading.Event()
calls: list[list[int]] = []


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int]) -> list[int]:
        calls.append(rows)
        if 13 in rows:
            raise ArithmeticError("thirteen")
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def later(self, rows: list[int]) -> list[int]:
        return self.make(rows)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def held(self, rows: list[int]) -> list[int]:
        if 0 in rows:
            assert leave.wait(30)
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", timeout=0.2)
    def slow(self, rows: list[int]) -> list[int]:
        if 5 in rows:
            leave.wait(30)
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def double(self, rows: list[int]) -> list[int]:
        return [*rows, *rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def flags(self, rows: list[int]) -> list[bool]:
        return [row % 2 == 1 for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def table(self, rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


@pytest.fixture(params=[0, 9], ids=["loop", "ahead"])
def ahead(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def maker() -> Iterator[Maker]:
    leave.clear()
    calls.clear()
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        yield on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        leave.set()


@pytest.mark.parametrize("stage", ["make", "later"])
def test_a_row_for_which_a_stage_raises_twice_is_skipped_and_named(
    maker: Maker, ahead: int, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with stream(SOURCE, getattr(maker, stage), rows=5, ahead=ahead, on_error="skip") as batches:
        found = [row for batch in batches for row in get(batch)]
        state = batches.state_dict()
    assert found == [row for row in range(40) if row != 13]
    assert batches.stats().skipped == 1
    assert len([text for text in caplog.messages if "row 13" in text and "thirteen" in text]) == 1
    assert (state["row"], state["gone"]) == (40, [])


def test_a_row_for_which_a_stage_raises_twice_ends_the_stream_and_stays_in_its_state(maker: Maker) -> None:
    with pytest.raises(ArithmeticError, match="thirteen") as caught, stream(SOURCE, maker.make, ahead=9) as batches:
        for _ in batches:
            pass
    assert any("row 13" in note for note in caught.value.__notes__)
    alone = [rows for rows in calls if 13 in rows]
    assert len(alone) == 2 and alone[-1] == [13], "the second time without other rows"
    state = batches.state_dict()
    assert state["row"] <= 12
    with stream(SOURCE, lambda rows: rows, rows=40) as again:
        again.load_state_dict(state)
        assert 13 in next(again)


def test_keep_may_refuse_all_and_raise(maker: Maker, ahead: int) -> None:
    leave.set()
    with stream(SOURCE, maker.held, rows=10, ahead=ahead, keep=lambda row: row < 0) as batches:
        assert list(batches) == [] and batches.stats().refused == 40
        assert list(batches) == [], "the next epoch too"
    with pytest.raises(ZeroDivisionError), stream(SOURCE, maker.held, ahead=ahead, keep=lambda row: 1 / row) as batches:
        list(batches)
    with pytest.raises(TypeError, match="keep is a function"):
        stream(SOURCE, keep=3)  # type: ignore[arg-type]  # on purpose


def test_rows_of_a_call_that_is_late_are_made_by_another_rank_and_a_second_time_is_an_error(maker: Maker) -> None:
    def release() -> None:
        time.sleep(0.35)
        leave.set()

    threading.Thread(target=release, daemon=True).start()
    with stream(SOURCE, maker.slow, rows=4, ahead=9) as batches:
        assert [row for batch in batches for row in get(batch)] == list(range(40))
    leave.clear()
    with pytest.raises(TimeoutError, match=r"slow"), stream(SOURCE, maker.slow, rows=4, ahead=9) as batches:
        list(batches)


def test_a_long_wait_is_named_once_with_its_calls(
    maker: Maker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ahead_module, "_WAIT_SECONDS", 0.2)

    def release() -> None:
        until = time.monotonic() + 20
        while not caplog.records and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.5)
        leave.set()

    threading.Thread(target=release, daemon=True).start()
    with caplog.at_level(logging.WARNING), stream(SOURCE, maker.held, rows=40, ahead=40) as batches:
        assert len(get(next(batches))) == 40
    assert len(caplog.messages) == 1
    assert "Maker.held" in caplog.messages[0] and "two[" in caplog.messages[0] and "leave.wait" in caplog.messages[0]


def test_batches_know_their_rows_and_other_lazies_do_not(maker: Maker, ahead: int) -> None:
    with stream([[4, 5, 6, 7]] * 3, maker.later, rows=2, ahead=ahead) as batches:
        kept = []
        for batch in batches:
            batches.publish()
            assert isinstance(batch, Lazy) and batch.info is batches.info
            kept.append(batch)
    assert [list(batch.info.indices) for batch in kept] == [[at, at + 1] for at in range(0, 12, 2)]
    assert all(lag == 0 for lag in kept[0].info.lag) and {batch.info.epoch for batch in kept} == {0}
    with pytest.raises(AttributeError, match="info"):
        assert submit(maker.flags, [1]).info


def test_metrics_are_counted_by_stage(maker: Maker, ahead: int) -> None:
    with stream(SOURCE, maker.flags, maker.flags, lambda rows: get(rows), rows=8, ahead=ahead) as batches:
        assert batches.stats().rows == 0 and batches.stats().rows_per_second == 0.0
        for _ in batches:
            batches.publish()
    stats = batches.stats()
    assert (stats.rows, stats.batches, stats.versions, stats.lag.total()) == (40, 5, 5, 40)
    assert [(name.split(".")[-1], one.rows) for name, one in stats.stages.items()] == [
        ("flags", 40),
        ("flags #2", 40),
        ("<lambda>", 40),
    ]
    assert stats.seconds > 0 and 0 <= stats.waiting + stats.reading <= 1 and stats.mean_lag <= stats.worst_lag
    assert "Maker.flags #2" in str(stats) and "40 rows in" in str(stats)


def test_an_iterator_that_was_interrupted_is_not_read_on(maker: Maker, ahead: int) -> None:
    def rows() -> Iterator[list[int]]:
        yield [1, 2, 3, 4, 5, 6]
        raise KeyboardInterrupt

    with stream(rows(), maker.flags, ahead=ahead and 2, rows=2) as batches:
        assert list(get(next(batches))) == [True, False]
        with pytest.raises(KeyboardInterrupt):
            list(batches)
        with pytest.raises(ValueError, match="its next row is not known"):
            next(batches)


def test_rows_of_a_mixture_have_none_in_the_columns_of_others(maker: Maker, ahead: int) -> None:
    source = [[{"prompt": 5, "answer": "4"}], [{"prompt": 6, "tests": "t"}], [{"prompt": 7, "answer": "5"}]]
    with stream(source, maker.table, rows=3, ahead=ahead and 1) as batches:
        if not ahead:
            with pytest.raises(KeyError):
                get(next(batches))
            return
        found = get(next(batches))
    assert found == {"prompt": [5, 6, 7], "answer": ["4", None, "5"], "tests": [None, "t", None]}
