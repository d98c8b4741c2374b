"""The figures of each call: bytes and seconds, measured by the driver and the workers."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.messages import Outcome


@dataclass(slots=True)
class CallRecord:
    """The figures of one call; bytes and seconds, by rank if they differ between workers.

    Attributes:
        method: Class.method.
        group: Group that was called.
        workers: Number of called workers.
        submitted: Time of the call, in seconds of the driver's wall clock.
        driver_seconds: Time that the driver took to divide and send the arguments.
        driver_sent: Bytes that the driver stored or sent for the call: arguments, and the description of the task.
        driver_fetched: Bytes of results that the driver fetched.
        worker_fetched: Bytes of arguments that each rank fetched from other processes.
        produced: Bytes of the result of each rank.
        started: Start of the method on each rank, in seconds of its wall clock.
        seconds: Duration of the method on each rank.
        fetch_seconds: Time that each rank took to fetch its arguments.
        failed: Ranks that failed.
    """

    method: str
    group: str
    workers: int
    submitted: float = field(default_factory=time.time)
    driver_seconds: float = 0.0
    driver_sent: int = 0
    driver_fetched: int = 0
    worker_fetched: dict[int, int] = field(default_factory=dict)
    produced: dict[int, int] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    fetch_seconds: dict[int, float] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add the figures of one worker's answer."""
        self.worker_fetched[outcome.rank] = outcome.fetched
        self.produced[outcome.rank] = outcome.produced
        self.started[outcome.rank] = outcome.started
        self.seconds[outcome.rank] = outcome.seconds
        self.fetch_seconds[outcome.rank] = outcome.fetch_seconds
        if outcome.failure is not None:
            self.failed.append(outcome.rank)

    @property
    def queue_seconds(self) -> float:
        """Longest time from the call to the start of the method on a rank, without fetching."""
        waits = [self.started[rank] - self.fetch_seconds[rank] - self.submitted for rank in self.started]
        return max(0.0, *waits) if waits else 0.0

    @property
    def skew_seconds(self) -> float:
        """Time from the end of the first rank to the end of the last one."""
        ends = [self.started[rank] + self.seconds[rank] for rank in self.started]
        return max(ends) - min(ends) if ends else 0.0


class Stats:
    """The records of the latest calls, the oldest first.

    Args:
        limit: Number of records that are kept.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._records: deque[CallRecord] = deque(maxlen=limit)

    def open(self, method: str, group: str, workers: int) -> CallRecord:
        """A new record."""
        record = CallRecord(method, group, workers)
        self._records.append(record)
        return record

    def records(self) -> Sequence[CallRecord]:
        """All records that are kept."""
        return list(self._records)
