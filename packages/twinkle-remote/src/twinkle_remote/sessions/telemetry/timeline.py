"""The timeline of a session: calls and weight syncs by worker, as a file for Chrome's and Perfetto's trace viewer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinkle_remote.sessions.current import running, stats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.sessions.telemetry.stats import CallRecord, SyncRecord

_MICRO = 1e6


@dataclass(slots=True)
class _Slice:
    """A slice of a track; whole microseconds, so that no rounding makes neighbours overlap."""

    name: str
    kind: str
    begin: int
    end: int
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class _Track:
    """A track, which takes as many lanes as its slices overlap."""

    name: str
    slices: list[_Slice] = field(default_factory=list)

    def lanes(self) -> list[list[_Slice]]:
        lanes: list[list[_Slice]] = []
        for one in sorted(self.slices, key=lambda one: (one.begin, one.end)):
            free = next((lane for lane in lanes if lane[-1].end <= one.begin), None)
            if free is None:
                lanes.append(free := [])
            free.append(one)
        return lanes or [[]]


class Trace:
    """Collects slices; no two slices of one lane overlap."""

    def __init__(self) -> None:
        self._processes: dict[str, dict[str, _Track]] = {}

    def track(self, process: str, name: str) -> None:
        """Have a track, in this order among the tracks of its process."""
        self._processes.setdefault(process, {}).setdefault(name, _Track(name))

    def add(
        self,
        process: str,
        track: str,
        name: str,
        kind: str,
        start: float,
        seconds: float,
        *,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a slice.

        Args:
            process: Name of the tracks that are shown together.
            track: Name of the track.
            name: Name of the slice.
            kind: Its category.
            start: Its begin, in seconds of the wall clock.
            seconds: How long it is, at or above 0.
            arguments: What else it says.
        """
        self.track(process, track)
        begin = round(start * _MICRO)
        end = max(begin + 1, round((start + seconds) * _MICRO))
        self._processes[process][track].slices.append(_Slice(name, kind, begin, end, arguments or {}))

    def events(self) -> Sequence[dict[str, Any]]:
        """The trace events: names of processes and lanes, and slices."""
        events: list[dict[str, Any]] = []
        for pid, (process, tracks) in enumerate(self._processes.items()):
            events.append(_name("process_name", pid, 0, process))
            tid = 0
            for track in tracks.values():
                for number, lane in enumerate(track.lanes()):
                    label = track.name if number == 0 else f"{track.name} ({number + 1})"
                    events.append(_name("thread_name", pid, tid, label))
                    events += [_event(one, pid, tid) for one in lane]
                    tid += 1
        return events

    def write(self, path: str | Path) -> Path:
        """Write all of it to a `.json` file, which is replaced; https://ui.perfetto.dev opens it."""
        target = Path(path)
        target.write_text(json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ms"}))
        return target


def _event(one: _Slice, pid: int, tid: int) -> dict[str, Any]:
    place = {"pid": pid, "tid": tid, "ts": one.begin, "dur": one.end - one.begin}
    return {"name": one.name, "cat": one.kind, "ph": "X", **place, "args": dict(one.arguments)}


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


_DRIVER = "driver"


def write_timeline(path: str | Path) -> Path:
    """Write the latest calls of this session as trace events; https://ui.perfetto.dev opens the file.

    Each component has a track for each rank, with the chunks of streams by their rows; the driver has one for its calls
    and one for weight syncs. Times are by the workers' clocks, so between nodes they are only as exact as these clocks.

    Args:
        path: A `.json` file, which is replaced.

    Raises:
        NotInitializedError: There is no session.
    """
    runtime = running()
    trace = Trace()
    add_calls(trace, stats())
    add_syncs(trace, runtime.stats.syncs())
    return trace.write(path)


def add_calls(trace: Trace, records: Sequence[CallRecord]) -> None:
    """For each call what the driver spent on it, and for each rank its fetching and its run.

    Args:
        trace: Where they are added.
        records: Metrics of calls.
    """
    trace.track(_DRIVER, "calls")
    ranks = sorted({(_component(record), record.group, rank) for record in records for rank in record.started})
    for component, group, rank in ranks:
        trace.track(component, f"{group}[{rank}]")
    for record in records:
        component = _component(record)
        name = f"{record.method} {record.label}" if record.label else record.method
        moved = {"stored": record.driver_sent, "fetched": record.driver_fetched, "workers": record.workers}
        trace.add(_DRIVER, "calls", name, "send", record.submitted, record.driver_seconds, arguments=moved)
        fetch_seconds, fetched_bytes = record.fetch_seconds, record.worker_fetched
        seconds, produced = record.seconds, record.produced
        for rank, started in sorted(record.started.items()):
            track, fetching = f"{record.group}[{rank}]", fetch_seconds[rank]
            if fetching > 0:
                fetched = {"bytes": fetched_bytes[rank]}
                trace.add(component, track, "fetch", "fetch", started - fetching, fetching, arguments=fetched)
            done = {"produced": produced[rank], "failed": rank in record.failed}
            trace.add(component, track, name, "run", started, seconds[rank], arguments=done)


def add_syncs(trace: Trace, syncs: Sequence[SyncRecord]) -> None:
    """The weight syncs of a session.

    Args:
        trace: Where they are added.
        syncs: When they were.
    """
    for sync in syncs:
        name = f"weights of {sync.group}: {sync.component}"
        trace.add(_DRIVER, "weight syncs", name, "sync", sync.began, sync.ended - sync.began)


def _component(record: CallRecord) -> str:
    return f"{record.group}: {record.method.split('.')[0]}"
