"""What takes long is named once, with its function, rows and stack."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stream
from twinkle_remote.streams.chunks.slow_chunks import SlowChunks
from twinkle_remote.streams.schedule.decisions import Assignment, StageCall

if TYPE_CHECKING:
    from collections.abc import Iterator

_leave = threading.Event()


def waits_for_a_long_time(rows: Any) -> Any:
    if 7 in rows:
        _leave.wait(30)
    return rows


@remote_class()
class Grader:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rows: list[int]) -> list[int]:
        return list(waits_for_a_long_time(rows))

    @remote_function(dispatch="slice_dp", collect="flatten")
    def passed(self, rows: list[int]) -> list[int]:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", timeout=0.2)
    def late(self, rows: list[int]) -> list[int]:
        return list(waits_for_a_long_time(rows))


@pytest.fixture
def grader() -> Iterator[Grader]:
    _leave.clear()
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        yield on("two", DeviceMesh.from_sizes(dp_size=2)).create(Grader)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_row_that_takes_long_is_named(
    grader: Grader, caplog: pytest.LogCaptureFixture, plain: bool, at_once: int
) -> None:
    stage: Any = (lambda rows: waits_for_a_long_time(get(rows))) if plain else grader.grade
    options: Any = {"rows": 2, "ahead": 6, "order": "arrival", "chunk": 1, "at_once": at_once, "patience": 0.3}
    with caplog.at_level(logging.WARNING), stream([[row] for row in range(24)], stage, **options) as batches:
        seen: list[int] = []
        threading.Thread(target=_leave_when_told, args=(caplog,), daemon=True).start()
        for batch in batches:
            seen += get(batch)
    told = [record.getMessage() for record in caplog.records if "has been at" in record.getMessage()]
    assert sorted(seen) == list(range(24))
    assert len(told) == 1
    assert "row 7 of epoch 0" in told[0]
    assert "waits_for_a_long_time" in told[0]


def _leave_when_told(caplog: pytest.LogCaptureFixture) -> None:
    until = time.monotonic() + 20
    while not caplog.records and time.monotonic() < until:
        time.sleep(0.02)
    _leave.set()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("mode", ["local", "threads"])
def test_a_synchronous_stream_names_it_too(caplog: pytest.LogCaptureFixture, mode: str, plain: bool) -> None:
    _leave.clear()
    with session(mode, groups=[DeviceGroup("two", 2, "CPU")]):
        grader = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Grader)
        stage: Any = (lambda rows: waits_for_a_long_time(get(rows))) if plain else grader.grade
        source = [[row, row + 1] for row in range(0, 12, 2)]
        with caplog.at_level(logging.WARNING), stream(source, grader.passed, stage, patience=0.3) as batches:
            threading.Thread(target=_leave_when_told, args=(caplog,), daemon=True).start()
            assert [row for batch in batches for row in get(batch)] == list(range(12))
    told = [text for text in caplog.messages if "has been at" in text]
    assert len(told) == 1
    assert "row 6, 7 of epoch 0" in told[0]
    assert "waits_for_a_long_time" in told[0]
    assert not [one for one in threading.enumerate() if one.name == "twinkle-stream-slow" and not _ends(one)]


def _ends(thread: threading.Thread) -> bool:
    thread.join(5)
    return not thread.is_alive()


def test_a_synchronous_stream_that_nothing_holds_up_names_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]), caplog.at_level(logging.WARNING):
        grader = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Grader)
        for patience in (0.2, None):
            with stream([[row] for row in range(5)], grader.passed, patience=patience) as batches:
                for batch in batches:
                    time.sleep(0.1)  # the loop's own time is no stage's
                    get(batch)
    assert caplog.messages == []


def test_a_stage_whose_workers_are_all_late_is_told(grader: Grader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), stream([[7], [7]], grader.late, ahead=2, patience=0.3) as batches:
        threading.Thread(target=_leave_when_told, args=(caplog,), daemon=True).start()
        assert [list(get(batch)) for batch in batches] == [[7], [7]]
    told = [record.getMessage() for record in caplog.records]
    assert sum("no worker of Grader.late takes rows" in text for text in told) == 1


def work_of(chunk: int, stage: int) -> StageCall:
    return StageCall(stage, 0, (Assignment(chunk, stage, 0, chunk, 1, 0),))


def test_limits_of_slow_chunks() -> None:
    now = [0.0]
    slow = SlowChunks(60.0, [0, None], lambda: now[0])
    for chunk in range(3):
        slow.begin(work_of(chunk, 0))
    now[0] = 61.0
    assert [work.number for work, _ in slow.overdue()] == [0], "the others wait behind it"
    assert slow.overdue() == []
    slow.end(work_of(0, 0))
    assert slow.overdue() == []
    now[0] = 122.0
    assert [work.number for work, _ in slow.overdue()] == [1]
    for chunk in range(10, 20):
        slow.begin(work_of(chunk, 1))
        slow.end(work_of(chunk, 1))
    slow.begin(work_of(30, 1))
    now[0] = 131.0
    assert slow.overdue() == []
    now[0] = 133.0
    assert [work.number for work, _ in slow.overdue()] == [30], "ten times as long, and a sixth of a minute"


@pytest.mark.parametrize("patience", [0, -1.0, True, "60"])
def test_patience_is_seconds(patience: Any) -> None:
    with pytest.raises(ValueError, match="patience"):
        stream([[1]], lambda rows: rows, patience=patience)
