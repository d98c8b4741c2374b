"""The timeline of a session: calls and weight syncs by worker, as a file for Chrome's and Perfetto's trace viewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from twinkle_remote.sessions.telemetry.stats import CallRecord, SyncRecord

_MICRO = 1e6
_DRIVER = "driver"


class Slice(NamedTuple):
    """A slice of a track; whole microseconds, so that no rounding makes neighbours overlap."""

    name: str
    kind: str
    begin: int
    end: int
    arguments: Mapping[str, Any]


Tracks: TypeAlias = dict[str, dict[str, list[Slice]]]
"""The slices of each track, by the name of its process and its own."""


def write_timeline(path: str | Path) -> Path:
    """Write the latest calls of this session as trace events; https://ui.perfetto.dev opens the file.

    Each component has a track for each rank, with the chunks of streams by their rows; the driver has one for its calls
    and one for weight syncs. Times are by the workers' clocks, so between nodes they are only as exact as these clocks.

    Args:
        path: A `.json` file, which is replaced.

    Raises:
        NotInitializedError: There is no session.
    """
    stats, target = running().stats, Path(path)
    events = events_of(tracks_of(stats.records(), stats.syncs()))
    target.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return target


def slice_of(name: str, kind: str, start: float, seconds: float, **arguments: Any) -> Slice:
    """A slice of a kind, from its begin in seconds of the wall clock, with what else it says."""
    begin = round(start * _MICRO)
    return Slice(name, kind, begin, max(begin + 1, round((start + seconds) * _MICRO)), arguments)


def tracks_of(records: Iterable[CallRecord], syncs: Iterable[SyncRecord] = ()) -> Tracks:
    """The tracks: what the driver spent on each call, its weight syncs, and for each rank its fetching and its runs."""
    records = list(records)
    ranks = {(_component(record), record.group, rank) for record in records for rank in list(record.ranks)}
    tracks: Tracks = {_DRIVER: {"calls": []}}
    for component, group, rank in sorted(ranks):
        tracks.setdefault(component, {})[f"{group}[{rank}]"] = []
    for record in records:
        name = f"{record.method} {record.label}" if record.label else record.method
        moved = {"stored": record.driver_sent, "fetched": record.driver_fetched, "workers": record.workers}
        tracks[_DRIVER]["calls"].append(slice_of(name, "send", record.submitted, record.driver_seconds, **moved))
        for rank, part in list(record.ranks.items()):
            own = tracks[_component(record)].setdefault(f"{record.group}[{rank}]", [])
            if part.fetch_seconds > 0:
                began = part.started - part.fetch_seconds
                own.append(slice_of("fetch", "fetch", began, part.fetch_seconds, bytes=part.fetched))
            done = {"produced": part.produced, "failed": part.failed}
            own.append(slice_of(name, "run", part.started, part.seconds, **done))
    for sync in syncs:
        name = f"weights of {sync.group}: {sync.component}"
        made = tracks[_DRIVER].setdefault("weight syncs", [])
        made.append(slice_of(name, "sync", sync.began, sync.ended - sync.began))
    return tracks


def _component(record: CallRecord) -> str:
    return f"{record.group}: {record.method.split('.')[0]}"


def events_of(tracks: Tracks) -> Sequence[dict[str, Any]]:
    """The trace events: names of processes and lanes, and slices; a track has as many lanes as its slices overlap."""
    events: list[dict[str, Any]] = []
    for pid, (process, own) in enumerate(tracks.items()):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": process}})
        named = [
            (name if number == 0 else f"{name} ({number + 1})", lane)
            for name, slices in own.items()
            for number, lane in enumerate(_lanes(slices))
        ]
        for tid, (name, lane) in enumerate(named):
            place = {"pid": pid, "tid": tid}
            events.append({"name": "thread_name", "ph": "M", **place, "args": {"name": name}})
            for one in lane:
                timed = {"ts": one.begin, "dur": one.end - one.begin, "args": dict(one.arguments)}
                events.append({"name": one.name, "cat": one.kind, "ph": "X", **place, **timed})
    return events


def _lanes(slices: Iterable[Slice]) -> Sequence[Sequence[Slice]]:
    """The lanes of one track; no two slices of a lane overlap."""
    lanes: list[list[Slice]] = [[]]
    for one in sorted(slices, key=lambda one: (one.begin, one.end)):
        free = next((lane for lane in lanes if not lane or lane[-1].end <= one.begin), None)
        if free is None:
            lanes.append(free := [])
        free.append(one)
    return lanes
