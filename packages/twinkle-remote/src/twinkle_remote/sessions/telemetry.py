"""The metrics of a session's calls, in bytes and seconds of the driver and the workers, and their timeline."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from twinkle_remote.protocol.messages import Outcome


class RankMetrics(NamedTuple):
    """The part of one rank in a call, by its worker's wall clock.

    Attributes:
        fetched: Bytes of arguments that it fetched from elsewhere.
        produced: Bytes of its result.
        started: When its method began, in seconds.
        seconds: The duration of its method.
        fetch_seconds: The time for which it fetched its arguments, before the method.
        failed: Whether it failed.
    """

    fetched: int
    produced: int
    started: float
    seconds: float
    fetch_seconds: float
    failed: bool


@dataclass(slots=True)
class CallRecord:
    """The metrics of one call, in bytes and seconds.

    Attributes:
        method: Class.method.
        group: Group that was called.
        workers: Number of called workers.
        label: A description, if there is one: the rows of a stream's chunk.
        submitted: Wall clock when the driver made the call, in seconds.
        driver_seconds: Time that the driver spent dividing and sending.
        driver_sent: Bytes that the driver stored or sent for it: the arguments and the description of the call.
        driver_fetched: Bytes of results that the driver fetched.
        ranks: The part of each rank that has answered, in the order of the answers.
    """

    method: str
    group: str
    workers: int
    label: str = ""
    submitted: float = field(default_factory=time.time)
    driver_seconds: float = 0.0
    driver_sent: int = 0
    driver_fetched: int = 0
    ranks: dict[int, RankMetrics] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Add the metrics of an answer."""
        self.ranks[outcome.rank] = RankMetrics(
            outcome.fetched,
            outcome.produced,
            outcome.started,
            outcome.seconds,
            outcome.fetch_seconds,
            outcome.failure is not None,
        )

    @property
    def failed(self) -> Sequence[int]:
        """Ranks that failed, in the order of their answers."""
        return [rank for rank, part in list(self.ranks.items()) if part.failed]

    @property
    def worker_fetched(self) -> Mapping[int, int]:
        """Bytes of arguments that each rank fetched from elsewhere."""
        return {rank: part.fetched for rank, part in list(self.ranks.items())}

    @property
    def produced(self) -> Mapping[int, int]:
        """Bytes of each rank's result."""
        return {rank: part.produced for rank, part in list(self.ranks.items())}

    @property
    def bytes_fetched(self) -> int:
        """Bytes of arguments that all ranks fetched from elsewhere."""
        return sum(self.worker_fetched.values())

    @property
    def run_seconds(self) -> float:
        """The duration of the longest rank's method."""
        return max([part.seconds for part in list(self.ranks.values())], default=0.0)

    @property
    def queue_seconds(self) -> float:
        """Longest time between the call and the begin of a rank's method, fetching left out."""
        begins = [part.started - part.fetch_seconds for part in list(self.ranks.values())]
        return max(0.0, max(begins, default=0.0) - self.submitted)

    @property
    def skew_seconds(self) -> float:
        """Time between the first rank's end and the last one's."""
        ends = [part.started + part.seconds for part in list(self.ranks.values())]
        return max(ends, default=0.0) - min(ends, default=0.0)


@dataclass(frozen=True, slots=True)
class SyncRecord:
    """New weights of a component.

    Attributes:
        component: Name of its class.
        group: Its group.
        began: Wall clock when the sync began, in seconds.
        ended: Wall clock when the weights were there.
    """

    component: str
    group: str
    began: float
    ended: float


class CallRecords(list[CallRecord]):
    """Records of calls, the oldest first; `print` shows a table with a row for each method of a group."""

    def __str__(self) -> str:
        head = ("method", "group", "calls", "failed", "run", "queued", "skew", "sent", "fetched", "between workers")
        found: dict[tuple[str, str], list[CallRecord]] = {}
        for record in self:
            found.setdefault((record.method, record.group), []).append(record)
        longest = sorted(found.values(), key=lambda together: -sum(record.run_seconds for record in together))
        foot = "run, queued, skew: mean of a call; sent, fetched: by the driver; between workers: arguments"
        return "\n".join([*table([head, *map(_row, longest)], 2), foot])


def table(rows: Sequence[Sequence[str]], left: int) -> Sequence[str]:
    """The lines of a table, of which so many columns are aligned at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    drawn = [
        [cell.ljust(w) if at < left else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]
    return ["  ".join(cells).rstrip() for cells in drawn]


def _row(together: Sequence[CallRecord]) -> Sequence[str]:
    first, count = together[0], len(together)
    return (
        first.method,
        f"{first.group}[{max(record.workers for record in together)}]",
        str(count),
        str(sum(bool(record.failed) for record in together)),
        _seconds(sum(record.run_seconds for record in together) / count),
        _seconds(sum(record.queue_seconds for record in together) / count),
        _seconds(sum(record.skew_seconds for record in together) / count),
        _bytes(sum(record.driver_sent for record in together)),
        _bytes(sum(record.driver_fetched for record in together)),
        _bytes(sum(record.bytes_fetched for record in together)),
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


class Stats:
    """The records of the latest calls and weight syncs, the oldest first.

    Args:
        limit: How many calls and syncs are kept.
        ranks: How many ranks the calls that are kept may have in all: each takes about 250 bytes.
    """

    def __init__(self, limit: int = 10_000, ranks: int = 50_000) -> None:
        self._limit, self._ranks = limit, ranks
        self._records: deque[CallRecord] = deque()
        self._syncs: deque[SyncRecord] = deque(maxlen=limit)
        self._kept = 0

    def open(self, method: str, group: str, workers: int, submitted: float) -> CallRecord:
        """A new record of a call; it was submitted at this time of the wall clock, in seconds."""
        record = CallRecord(method, group, workers, submitted=submitted)
        self._records.append(record)
        self._kept += workers
        while len(self._records) > 1 and (self._kept > self._ranks or len(self._records) > self._limit):
            self._kept -= self._records.popleft().workers
        return record

    def records(self) -> CallRecords:
        """The records of the calls that are kept."""
        return CallRecords(tuple(self._records))

    def synced(self, record: SyncRecord) -> None:
        """A component has new weights."""
        self._syncs.append(record)

    def syncs(self) -> Sequence[SyncRecord]:
        """All weight syncs that are kept."""
        return list(self._syncs)


_MICRO = 1e6
_DRIVER = "driver"


Slice: TypeAlias = dict[str, Any]
"""A trace event of a track; whole microseconds, so that no rounding makes neighbours overlap."""

Tracks: TypeAlias = dict[str, dict[str, list[Slice]]]
"""The slices of each track, by the name of its process and its own."""


def timeline(records: Iterable[CallRecord], syncs: Iterable[SyncRecord]) -> str:
    """The text of a file of trace events."""
    return json.dumps({"traceEvents": events_of(tracks_of(records, syncs)), "displayTimeUnit": "ms"})


def slice_of(name: str, kind: str, start: float, seconds: float, **arguments: Any) -> Slice:
    """A slice of a kind, from its begin in seconds of the wall clock, with what else it says."""
    begin = round(start * _MICRO)
    duration = max(1, round((start + seconds) * _MICRO) - begin)
    return {"name": name, "cat": kind, "ph": "X", "ts": begin, "dur": duration, "args": arguments}


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
            events += [{**one, **place} for one in lane]
    return events


def _lanes(slices: Iterable[Slice]) -> Sequence[Sequence[Slice]]:
    """The lanes of one track; no two slices of a lane overlap."""
    lanes: list[list[Slice]] = [[]]
    for one in sorted(slices, key=lambda one: (one["ts"], one["dur"])):
        free = next((lane for lane in lanes if not lane or lane[-1]["ts"] + lane[-1]["dur"] <= one["ts"]), None)
        if free is None:
            lanes.append(free := [])
        free.append(one)
    return lanes


def report_start(text: str) -> None:
    """Print a step of a session's start on standard error, if that is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"twinkle: {text}", file=sys.stderr, flush=True)
