"""The timeline of a session: tracks for the driver, each component's ranks, weight syncs and the loops of streams."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stream, write_timeline
from twinkle_remote.backends.support import publishing
from twinkle_remote.errors import NotInitializedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Event = dict[str, Any]


@remote_class()
class Sampler:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[float]) -> list[float]:
        time.sleep(sum(rows))
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def grade(self, rows: list[float]) -> list[float]:
        return rows


def lanes(events: Sequence[Event]) -> dict[tuple[str, str], list[Event]]:
    """The slices of each lane by the names of its process and itself; none overlap."""
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found: dict[tuple[str, str], list[Event]] = {}
    for lane in (event for event in events if event["name"] == "thread_name"):
        place = lane["pid"], lane["tid"]
        slices = [event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == place]
        slices.sort(key=lambda event: event["ts"])
        for one, other in pairwise(slices):
            assert one["ts"] + one["dur"] <= other["ts"]
        key = processes[lane["pid"]], lane["args"]["name"]
        assert key not in found
        found[key] = slices
    return found


def names(slices: Sequence[Event]) -> list[str]:
    return [event["name"] for event in slices]


def test_streams_and_syncs_are_on_the_timeline(tmp_path: Path) -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        sampler = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Sampler)
        with stream([[0.01] * 12], sampler.sample, sampler.grade, rows=4, ahead=8) as batches:
            for batch in batches:
                get(batch)
                began = time.time()
                time.sleep(0.01)
                with publishing(sampler, began):
                    pass
        told = json.loads(write_timeline(tmp_path / "calls.json").read_text())["traceEvents"]
    calls = lanes(told)
    # A coroutine runs beside a method: where one of them takes the lane, the other gets a second one.
    made = [name for (process, _), slices in calls.items() if process == "two: Sampler" for name in names(slices)]
    assert sum(name.startswith(("Sampler.sample row", "Sampler.sample rows")) for name in made) >= 2
    assert names(calls["driver", "weight syncs"]) == ["weights of two: Sampler"] * 3


def test_calls_at_once_nest_rightly(tmp_path: Path) -> None:
    """Two components, a hand-over and coroutines: lanes without overlap."""
    groups = [DeviceGroup("two", 2, "CPU"), DeviceGroup("one", 1, "CPU")]
    with session("threads", groups=groups):
        sampler = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Sampler)
        other = on("one").create(Sampler)
        graded = [sampler.grade(sampler.sample([0.01, 0.02])) for _ in range(4)]
        again = [other.sample(sampler.sample([0.01] * 3)) for _ in range(4)]
        get([*graded, *again])
        events = json.loads(write_timeline(tmp_path / "calls.json").read_text())["traceEvents"]
    found = lanes(events)
    assert {process for process, _ in found} >= {"driver", "two: Sampler", "one: Sampler"}
    ran = [name for key, slices in found.items() if key[0] != "driver" for name in names(slices) if name != "fetch"]
    assert ran.count("Sampler.sample") == 8 * 2 + 4
    assert ran.count("Sampler.grade") == 4 * 2


def test_without_a_session_there_is_no_timeline(tmp_path: Path) -> None:
    with pytest.raises(NotInitializedError):
        write_timeline(tmp_path / "none.json")
