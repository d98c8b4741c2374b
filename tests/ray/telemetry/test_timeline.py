"""The figures of calls: as a timeline, and as Ray's metrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import twinkle_ray
import twinkle_remote as twinkle
from twinkle_ray.telemetry.metrics import Exporter, finished
from twinkle_ray.telemetry.timeline import trace_events
from twinkle_remote.protocol import Failure, Outcome
from twinkle_remote.sessions.stats import CallRecord

if TYPE_CHECKING:
    from pathlib import Path


@twinkle.remote_class()
class Worker:
    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def work(self, rows: list[int]) -> list[int]:
        if 13 in rows:
            raise ValueError("unlucky")
        return rows


def record() -> CallRecord:
    made = CallRecord("Actor.update", "actor", 2, submitted=100.0, driver_seconds=0.5, driver_sent=10)
    made.add(Outcome(0, produced=1, fetched=5, started=101.0, seconds=2.0, fetch_seconds=0.25))
    failure = Failure("actor[1/2]", "here", "ValueError", "unlucky")
    made.add(Outcome(1, produced=2, fetched=5, started=101.5, seconds=1.0, failure=failure))
    return made


def test_trace_events_have_a_track_for_each_rank() -> None:
    events = trace_events([record()])
    json.dumps(events)
    spans = {(event["name"], event["pid"], event["tid"]): event for event in events if event["ph"] == "X"}
    assert spans["Actor.update", 0, 0]["ts"] == 100e6 and spans["Actor.update", 0, 0]["dur"] == 0.5e6
    assert spans["fetch", 1, 0]["ts"] == 100.75e6 and spans["fetch", 1, 0]["args"] == {"bytes": 5}
    assert spans["Actor.update", 1, 1]["args"] == {"produced": 2, "failed": True}
    assert ("fetch", 1, 1) not in spans
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"driver", "calls", "actor", "actor[0]", "actor[1]"}
    arrows = [event for event in events if event["ph"] in "sf"]
    assert [event["ph"] for event in arrows] == ["s", "f", "f"] and {event["id"] for event in arrows} == {0}


@pytest.mark.ray
def test_the_timeline_of_a_session_is_written(ray_session: None, tmp_path: Path) -> None:
    worker = twinkle.on("two").create(Worker)
    worker.work([1, 2, 3])
    path = twinkle_ray.write_timeline(tmp_path / "calls.json")
    told: dict[str, Any] = json.loads(path.read_text())
    runs = [event for event in told["traceEvents"] if event["ph"] == "X" and event["cat"] == "run"]
    assert {event["name"] for event in runs} >= {"Worker.work"}
    assert all(event["dur"] > 0 for event in runs)


@pytest.mark.ray
def test_metrics_count_each_call_once(ray_session: None) -> None:
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
