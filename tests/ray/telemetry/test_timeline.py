"""The figures of calls: as a timeline, and as Ray's metrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import twinkle_remote as twinkle
from twinkle_ray.telemetry.metrics import Exporter, finished

if TYPE_CHECKING:
    from pathlib import Path


@twinkle.remote_class()
class Worker:
    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def work(self, rows: list[int]) -> list[int]:
        if 13 in rows:
            raise ValueError("unlucky")
        return rows


@pytest.mark.ray
def test_the_timeline_of_a_session_is_written(ray_pair: None, tmp_path: Path) -> None:
    worker = twinkle.on("two").create(Worker)
    worker.work([1, 2, 3])
    path = twinkle.write_timeline(tmp_path / "calls.json")
    told: dict[str, Any] = json.loads(path.read_text())
    runs = [event for event in told["traceEvents"] if event["ph"] == "X" and event["cat"] == "run"]
    assert {event["name"] for event in runs} >= {"Worker.work"}
    assert all(event["dur"] > 0 for event in runs)


@pytest.mark.ray
def test_metrics_count_each_call_once(ray_pair: None) -> None:
    exporter = Exporter(interval=0.05)
    worker = twinkle.on("two").create(Worker)
    for _ in range(3):
        worker.work([1, 2, 3])
    with pytest.raises(ValueError, match="unlucky"):
        worker.work([13, 1])
    exporter.close()
    done = finished(twinkle.stats())
    assert sum(one.method == "Worker.work" for one in done) >= 3
    assert exporter.counted[("two", "Worker.work")] == sum(one.method == "Worker.work" for one in done)
