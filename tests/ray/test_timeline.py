"""The figures of calls as a timeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import twinkle_remote as twinkle

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
