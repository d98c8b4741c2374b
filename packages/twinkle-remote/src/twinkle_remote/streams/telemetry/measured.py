"""The metrics of a stream, from its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.streams.telemetry.stream_stats import StageStats, StreamStats

if TYPE_CHECKING:
    from twinkle_remote.streams.schedule.counts import StreamCounts
    from twinkle_remote.streams.telemetry.stream_record import StreamRecord


def measured(record: StreamRecord, counts: StreamCounts) -> StreamStats:
    """Metrics since the stream was made.

    Args:
        record: Times.
        counts: Rows.
    """
    seconds = record.seconds()
    waiting, reading = record.waiting(), record.reading
    training = max(0.0, seconds - waiting - reading)
    whole = seconds or 1.0
    return StreamStats(
        counts.delivered,
        seconds,
        record.batches,
        record.versions,
        {place.name: _stage(record, index, whole) for index, place in enumerate(record.places)},
        training / whole,
        waiting / whole,
        reading / whole,
        counts.lag.copy(),
        counts.redone,
        counts.dropped,
        counts.set_aside,
    )


def _stage(record: StreamRecord, index: int, seconds: float) -> StageStats:
    place, rows = record.places[index], record.rows[index]
    time = seconds * place.data_ranks
    busy, waiting = record.busy(index) / time, max(0.0, 1.0 - record.occupied(index) / time)
    return StageStats(place.data_ranks, rows, busy, waiting, record.run[index] / rows if rows else 0.0)
