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
from twinkle_remote.protocol import Failure, Outcome
from twinkle_remote.sessions.telemetry import CallRecord, events_of, slice_of, tracks_of

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


def test_slices_that_overlap_get_lanes_of_their_own() -> None:
    starts = (("a", 5.0), ("b", 5.5), ("c", 6.0), ("d", 5.75))
    overlapping = [slice_of(name, "run", start, 1.0) for name, start in starts]
    found = lanes(events_of({"one": {"first": [], "second": overlapping}}))
    assert {key: names(slices) for key, slices in found.items()} == {
        ("one", "first"): [],
        ("one", "second"): ["a", "c"],
        ("one", "second (2)"): ["b"],
        ("one", "second (3)"): ["d"],
    }


def test_calls_have_a_track_for_each_rank_of_a_component() -> None:
    made = CallRecord("Actor.update", "actor", 2, submitted=100.0, driver_seconds=0.5, driver_sent=10)
    failure = Failure("actor[1/2]", "here", "ValueError", "unlucky")
    made.add(Outcome(0, produced=1, fetched=5, started=101.0, seconds=2.0, fetch_seconds=0.25))
    made.add(Outcome(1, produced=2, fetched=5, started=101.5, seconds=1.0, failure=failure))
    events = events_of(tracks_of([made]))
    json.dumps(events)
    found = lanes(events)
    (sent,) = found["driver", "calls"]
    assert (sent["ts"], sent["dur"], sent["args"]["stored"]) == (100_000_000, 500_000, 10)
    fetch, run = found["actor: Actor", "actor[0]"]
    assert (fetch["name"], fetch["ts"], fetch["args"]) == (
        "fetch",
        100_750_000,
        {"bytes": 5},
    )
    assert (run["name"], run["ts"], run["dur"]) == ("Actor.update", 101_000_000, 2_000_000)
    assert found["actor: Actor", "actor[1]"][0]["args"] == {"produced": 2, "failed": True}


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
