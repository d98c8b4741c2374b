"""A stream on a timeline: its loop, its versions, and the chunks of its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.sessions.telemetry.trace import Trace
    from twinkle_remote.streams.telemetry.stream_record import StreamRecord

_NAMED = 4  # spans of rows


def add_loop(trace: Trace, record: StreamRecord, name: str = "loop") -> None:
    """The steps of a loop and the versions that were published.

    Args:
        trace: Where they are added.
        record: What the stream remembers.
        name: Name of the loop.
    """
    trace.track(name, "steps")
    first = record.batches - len(record.steps)
    for number, step in enumerate(record.steps, first):
        arguments = {"rows": step.rows, "version": step.version}
        start, seconds = step.began + record.wall, step.ended - step.began
        trace.add(name, "steps", f"batch {number}", "step", start, seconds, arguments=arguments)
    for version, began, ended in record.published:
        trace.add(name, "versions", f"version {version}", "version", began + record.wall, ended - began)


def add_chunks(trace: Trace, record: StreamRecord) -> None:
    """The chunks of each stage on its data ranks.

    Args:
        trace: Where they are added.
        record: What the stream remembers.
    """
    for place in record.places:
        for rank in range(place.data_ranks):
            trace.track(f"{place.group}: {place.name}", f"data rank {rank}")
    for chunk in record.chunks:
        place = record.places[chunk.stage]
        arguments = {"rows": chunk.rows, "version": chunk.version, "failed": chunk.failed}
        trace.add(
            f"{place.group}: {place.name}",
            f"data rank {chunk.rank}",
            rows_label(chunk.spans or [(chunk.first, chunk.rows)]),
            "chunk",
            chunk.began + record.wall,
            chunk.ended - chunk.began,
            arguments=arguments,
        )


def rows_label(spans: Sequence[tuple[int, int]]) -> str:
    """The name of a call: its rows by their position in the source.

    Args:
        spans: First row and number of the rows that follow each other.
    """
    named = [str(first) if rows == 1 else f"{first}-{first + rows - 1}" for first, rows in spans[:_NAMED]]
    more = ", ..." if len(spans) > _NAMED else ""
    return f"{'row' if sum(rows for _, rows in spans) == 1 else 'rows'} {', '.join(named)}{more}"
