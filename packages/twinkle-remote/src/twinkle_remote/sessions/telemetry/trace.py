"""Slices on named tracks, as trace events that Perfetto and Chrome open."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MICRO = 1e6


@dataclass(slots=True)
class _Slice:
    """A slice of a track; whole microseconds, so that no rounding makes neighbours overlap."""

    name: str
    kind: str
    begin: int
    end: int
    arguments: Mapping[str, Any]
    flows: list[tuple[str, int, int]]


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
        leaves: Sequence[int] = (),
        enters: int | None = None,
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
            leaves: Numbers of the arrows that leave its middle; each enters one slice, since a viewer ends it there.
            enters: Number of the arrow that enters its begin.
        """
        self.track(process, track)
        begin = round(start * _MICRO)
        end = max(begin + 1, round((start + seconds) * _MICRO))  # an arrow binds to a slice that has a length
        flows = [("s", number, (begin + end) // 2) for number in leaves]
        flows += [] if enters is None else [("f", enters, begin)]
        self._processes[process][track].slices.append(_Slice(name, kind, begin, end, arguments or {}, flows))

    def events(self) -> Sequence[dict[str, Any]]:
        """The trace events: names of processes and lanes, slices, arrows."""
        events: list[dict[str, Any]] = []
        for pid, (process, tracks) in enumerate(self._processes.items()):
            events.append(_name("process_name", pid, 0, process))
            tid = 0
            for track in tracks.values():
                for number, lane in enumerate(track.lanes()):
                    label = track.name if number == 0 else f"{track.name} ({number + 1})"
                    events.append(_name("thread_name", pid, tid, label))
                    for one in lane:
                        events += _events(one, pid, tid)
                    tid += 1
        return events

    def write(self, path: str | Path) -> Path:
        """Write all of it to a `.json` file, which is replaced; https://ui.perfetto.dev opens it."""
        target = Path(path)
        target.write_text(json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ms"}))
        return target


def _events(one: _Slice, pid: int, tid: int) -> list[dict[str, Any]]:
    place = {"pid": pid, "tid": tid, "ts": one.begin, "dur": one.end - one.begin}
    events = [{"name": one.name, "cat": one.kind, "ph": "X", **place, "args": dict(one.arguments)}]
    for phase, number, at in one.flows:
        flow = {"name": "call", "cat": "call", "ph": phase, "id": number, "pid": pid, "tid": tid, "ts": at}
        events.append({**flow, "bp": "e"} if phase == "f" else flow)
    return events


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
