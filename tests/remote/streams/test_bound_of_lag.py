"""The bound of lag of a real stream: several versions a batch, and versions that come faster than rows."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

made: Counter[int] = Counter()
_lock = threading.Lock()


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int]) -> list[int]:
        with _lock:
            made.update(rows)
        time.sleep(0.002 * len(rows))
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def begin(self, rows: list[int]) -> list[int]:
        with _lock:
            made.update(rows)
        return rows


@pytest.fixture
def maker() -> Iterator[Maker]:
    made.clear()
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        yield on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)


def source(rows: int = 40) -> list[list[int]]:
    return [[row, row + 1] for row in range(0, rows, 2)]


@pytest.mark.parametrize("stale", ["wait", "redo", "use"])
@pytest.mark.parametrize("order", ["source", "arrival"])
@pytest.mark.parametrize("rows", [4, None])
@pytest.mark.parametrize(("max_lag", "versions"), [(1, 2), (0, 3)])
def test_several_versions_a_batch(
    maker: Maker, stale: Any, order: Any, rows: int | None, max_lag: int, versions: int
) -> None:
    lags: list[list[int]] = []
    seen: list[int] = []
    options: Any = {"rows": rows, "ahead": 16, "order": order, "max_lag": max_lag, "stale": stale, "chunk": 2}
    with stream(source(), maker.make, **options) as batches:
        for batch in batches:
            seen += get(batch)
            assert batches.info is not None
            lags.append(list(batches.info.lag))
            for _ in range(versions):
                batches.publish()
        redone = batches.stats().redone
    assert sorted(seen) == list(range(40))
    assert max(made.values()) <= 2
    assert sum(made.values()) == 40 + redone
    known = lags if stale == "wait" else lags[5:]  # the others use what was begun before the number was known
    if stale != "use" or order == "source":
        assert max(max(lag) for lag in known) <= max_lag
    assert stale != "use" or not redone


@pytest.mark.parametrize("order", ["source", "arrival"])
@pytest.mark.parametrize("rows", [3, None])
@pytest.mark.parametrize("stale", ["wait", "redo"])
def test_versions_that_come_faster_than_rows(
    maker: Maker, caplog: pytest.LogCaptureFixture, order: Any, rows: int | None, stale: Any
) -> None:
    """Each row is overtaken while it is made: once it is made again, then it is used, and that is told once."""
    calls: Counter[int] = Counter()

    def overtaken(value: Any) -> Any:
        batches.publish()
        calls.update(get(value))
        return value

    options: Any = {"rows": rows, "ahead": 6, "order": order, "max_lag": 0, "stale": stale}
    batches = stream(source(12), maker.begin, overtaken, **options)
    with caplog.at_level(logging.WARNING), batches:
        assert sorted(row for batch in batches for row in get(batch)) == list(range(12))
        assert batches.stats().redone == sum(made.values()) - 12 <= 12
        assert max(batches.stats().lag) > 0
    told = [text for text in caplog.messages if "versions come faster than rows" in text]
    assert len(told) == 1
    assert "of epoch 0" in told[0]
    assert max(made.values()) == 2


@pytest.mark.parametrize("rows", [3, None])
def test_an_epoch_that_ends_without_a_batch_is_told(
    maker: Maker, caplog: pytest.LogCaptureFixture, rows: int | None
) -> None:
    def overtaken(value: Any) -> Any:
        batches.publish()
        return value

    batches = stream(source(12), overtaken, maker.make, rows=rows, ahead=6, order="arrival", max_lag=0, stale="drop")
    with caplog.at_level(logging.WARNING), batches:
        assert list(batches) == []
        assert batches.stats().dropped == 12
    assert [text for text in caplog.messages if "ends without a batch" in text and "12 rows were dropped" in text]


def test_an_empty_epoch_is_no_warning(maker: Maker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), stream([], maker.make, ahead=4, max_lag=0, stale="drop") as batches:
        assert list(batches) == []
    assert caplog.messages == []
