"""The latest calls as a timeline that Perfetto and Chrome open: a track for each rank, and one for the driver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinkle_remote import stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote import CallRecord

_DRIVER = 0
_MICRO = 1e6


def write_timeline(path: str | Path) -> Path:
    """Write the latest calls of this session as trace events; https://ui.perfetto.dev opens the file.

    Times are those of the workers' clocks; between nodes they are only as exact as these agree.

    Args:
        path: A `.json` file, which is replaced.

    Raises:
        NotInitializedError: There is no session.
    """
    target = Path(path)
    target.write_text(json.dumps({"traceEvents": trace_events(stats()), "displayTimeUnit": "ms"}))
    return target


def trace_events(records: Sequence[CallRecord]) -> list[dict[str, Any]]:
    """Trace events: for each call what the driver spent on it, and for each rank its fetching and its run.

    Args:
        records: Figures of calls.
    """
    groups = {name: 1 + i for i, name in enumerate(dict.fromkeys(record.group for record in records))}
    events = [_name("process_name", _DRIVER, 0, "driver"), _name("thread_name", _DRIVER, 0, "calls")]
    seen: set[tuple[int, int]] = set()
    for name, process in groups.items():
        events.append(_name("process_name", process, 0, name))
    for number, record in enumerate(records):
        process = groups[record.group]
        moved = {"stored": record.driver_sent, "fetched": record.driver_fetched, "workers": record.workers}
        events.append(_span(record.method, "send", _DRIVER, 0, record.submitted, record.driver_seconds, moved))
        events.append(_flow("s", number, _DRIVER, 0, record.submitted + record.driver_seconds / 2))
        fetch_seconds, fetched_bytes = record.fetch_seconds, record.worker_fetched
        seconds, produced = record.seconds, record.produced
        for rank, started in sorted(record.started.items()):
            if (process, rank) not in seen:
                seen.add((process, rank))
                events.append(_name("thread_name", process, rank, f"{record.group}[{rank}]"))
            fetching = fetch_seconds[rank]
            if fetching > 0:
                fetched = {"bytes": fetched_bytes[rank]}
                events.append(_span("fetch", "fetch", process, rank, started - fetching, fetching, fetched))
            done = {"produced": produced[rank], "failed": rank in record.failed}
            events.append(_span(record.method, "run", process, rank, started, seconds[rank], done))
            events.append(_flow("f", number, process, rank, started))
    return events


def _span(
    name: str, kind: str, process: int, thread: int, start: float, seconds: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    place = {"pid": process, "tid": thread, "ts": start * _MICRO, "dur": seconds * _MICRO}
    return {"name": name, "cat": kind, "ph": "X", **place, "args": arguments}


def _flow(phase: str, number: int, process: int, thread: int, at: float) -> dict[str, Any]:
    event = {"name": "call", "cat": "call", "ph": phase, "id": number, "pid": process, "tid": thread, "ts": at * _MICRO}
    return {**event, "bp": "e"} if phase == "f" else event


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
