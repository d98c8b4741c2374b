"""Metrics of calls, exported to Ray: a thread of the driver exports them, so that calls do not wait."""

from __future__ import annotations

import threading
from collections import Counter as Counts
from typing import TYPE_CHECKING

from ray.util.metrics import Counter, Histogram

from twinkle_remote.backends.support import active

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote import CallRecord

_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0]
_TAGS = ("group", "method")


class Exporter:
    """Exports the metrics of finished calls to Ray.

    Args:
        interval: Seconds between two exports.

    Attributes:
        counted: Number of exported calls, by group and method.
    """

    def __init__(self, interval: float = 5.0) -> None:
        self._run = Histogram("twinkle_run_seconds", "Longest rank of a call", boundaries=_SECONDS, tag_keys=_TAGS)
        self._queue = Histogram("twinkle_queue_seconds", "Wait before a call ran", boundaries=_SECONDS, tag_keys=_TAGS)
        self._skew = Histogram(
            "twinkle_skew_seconds", "First to last rank of a call", boundaries=_SECONDS, tag_keys=_TAGS
        )
        self._calls = Counter("twinkle_calls", "Calls that are done", tag_keys=_TAGS)
        self._failed = Counter("twinkle_failed_calls", "Calls that failed", tag_keys=_TAGS)
        self._bytes = Counter("twinkle_bytes", "Bytes stored and fetched", tag_keys=(*_TAGS, "way"))
        self.counted: Counts[tuple[str, str]] = Counts()
        self._exported: set[int] = set()
        self._interval = interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="twinkle-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Export what is left, and stop."""
        self._ended.set()
        self._thread.join(self._interval)

    def _loop(self) -> None:
        while not self._ended.wait(self._interval):
            self._export()
        self._export()

    def _export(self) -> None:
        runtime = active()
        records = [] if runtime is None else runtime.stats.own()
        for record in finished(records):
            if id(record) not in self._exported:
                self._add(record)
        self._exported = {id(record) for record in finished(records)}

    def _add(self, record: CallRecord) -> None:
        tags = {"group": record.group, "method": record.method}
        self._calls.inc(1, tags)
        self.counted[record.group, record.method] += 1
        if record.failed:
            self._failed.inc(1, tags)
        self._run.observe(record.run_seconds, tags)
        self._queue.observe(record.queue_seconds, tags)
        self._skew.observe(record.skew_seconds, tags)
        moved = {
            "driver stored": record.driver_sent,
            "driver fetched": record.driver_fetched,
            "workers fetched": record.bytes_fetched,
            "workers stored": record.bytes_produced,
        }
        for way, size in moved.items():
            if size:
                self._bytes.inc(size, {**tags, "way": way})


def finished(records: Sequence[CallRecord]) -> list[CallRecord]:
    """Return the records of calls that every rank has answered."""
    return [record for record in records if record.answered == record.workers]
