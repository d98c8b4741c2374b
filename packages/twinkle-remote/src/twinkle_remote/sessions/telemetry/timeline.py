"""The latest calls of a session as a timeline: tracks for the driver, each component's ranks and each stream's loop."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from twinkle_remote.sessions.current import records_of, running
from twinkle_remote.sessions.telemetry.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from twinkle_remote.sessions.telemetry.stats import CallRecord, SyncRecord

_DRIVER = "driver"
_NO_COLUMN = "(no column)"


def write_timeline(path: str | Path) -> Path:
    """Write the latest calls of this session as trace events; https://ui.perfetto.dev opens the file.

    Each component has a track for each rank, with the chunks of streams by their rows; the driver has one for its calls
    and one for weight syncs; each stream has one for its loop. Times are by the workers' clocks, so between nodes they
    are only as exact as these clocks. `Stream.timeline` writes only one stream, from the driver's view.

    Args:
        path: A `.json` file, which is replaced.

    Raises:
        NotInitializedError: There is no session.
    """
    runtime = running()
    trace = Trace()
    add_calls(trace, records_of(runtime))
    add_syncs(trace, runtime.stats.syncs())
    for draw in runtime.streams.loops:
        draw(trace)
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
    arrows = count()
    for record in records:
        component = _component(record)
        name = f"{record.method} {record.label}" if record.label else record.method
        moved: dict[str, object] = {"stored": record.driver_sent, "fetched": record.driver_fetched}
        moved |= {"workers": record.workers, "fetched by column": _named(record.driver_fetched_by_column)}
        sent = record.driver_seconds
        arrow = {rank: next(arrows) for rank in record.started}
        leaves = list(arrow.values())
        trace.add(_DRIVER, "calls", name, "send", record.submitted, sent, arguments=moved, leaves=leaves)
        fetch_seconds, fetched_bytes = record.fetch_seconds, record.worker_fetched
        by_column = record.worker_fetched_by_column
        seconds, produced = record.seconds, record.produced
        for rank, started in sorted(record.started.items()):
            track, fetching = f"{record.group}[{rank}]", fetch_seconds[rank]
            if fetching > 0:
                fetched = {"bytes": fetched_bytes[rank], "by column": _named(by_column[rank])}
                trace.add(component, track, "fetch", "fetch", started - fetching, fetching, arguments=fetched)
            done = {"produced": produced[rank], "failed": rank in record.failed}
            trace.add(component, track, name, "run", started, seconds[rank], arguments=done, enters=arrow[rank])


def add_syncs(trace: Trace, syncs: Sequence[SyncRecord]) -> None:
    """The weight syncs of a session.

    Args:
        trace: Where they are added.
        syncs: When they were.
    """
    for sync in syncs:
        name = f"weights of {sync.group}: {sync.component}"
        trace.add(_DRIVER, "weight syncs", name, "sync", sync.began, sync.ended - sync.began)


def _named(by_column: Mapping[str | None, int]) -> Mapping[str, int]:
    """Bytes by column as trace events hold them; a column may have the name of what belongs to none."""
    named = {name: nbytes for name, nbytes in by_column.items() if name is not None}
    rest = by_column.get(None, 0)
    return {**named, _NO_COLUMN: named.get(_NO_COLUMN, 0) + rest} if rest else named


def _component(record: CallRecord) -> str:
    return f"{record.group}: {record.method.split('.')[0]}"
