"""The figures of each call: bytes and seconds, measured by the driver and the workers."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from twinkle_remote.sessions.answers import Answers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.protocol.messages import Outcome


@dataclass(slots=True)
class CallRecord:
    """The figures of one call; bytes and seconds.

    Attributes:
        method: Class.method.
        group: Group that was called.
        workers: Number of called workers.
        submitted: Wall clock when the driver made the call, in seconds.
        driver_seconds: Time that the driver spent dividing and sending.
        driver_sent: Bytes that the driver stored or sent for it: arguments, and what says which call it is.
        driver_fetched: Bytes of results that the driver fetched.
        answered: Number of workers that have answered.
        bytes_fetched: Bytes of arguments that all ranks fetched from elsewhere.
        bytes_produced: Bytes of all ranks' results.
        run_seconds: How long the longest rank's method ran.
        failed: Ranks that failed.
    """

    method: str
    group: str
    workers: int
    submitted: float = field(default_factory=time.time)
    driver_seconds: float = 0.0
    driver_sent: int = 0
    driver_fetched: int = 0
    answered: int = 0
    bytes_fetched: int = 0
    bytes_produced: int = 0
    run_seconds: float = 0.0
    failed: Sequence[int] = ()
    _last_begin: float = 0.0
    _first_end: float = inf
    _last_end: float = 0.0
    _answers: Answers | None = field(default_factory=Answers, repr=False)

    def add(self, outcome: Outcome) -> None:
        """Add the figures of one worker's answer."""
        self.answered += 1
        self.bytes_fetched += outcome.fetched
        self.bytes_produced += outcome.produced
        self.run_seconds = max(self.run_seconds, outcome.seconds)
        self._last_begin = max(self._last_begin, outcome.started - outcome.fetch_seconds)
        self._first_end = min(self._first_end, outcome.started + outcome.seconds)
        self._last_end = max(self._last_end, outcome.started + outcome.seconds)
        if outcome.failure is not None:
            self.failed = (*self.failed, outcome.rank)
        if self._answers is not None:
            self._answers.add(outcome)

    def keep_sums_only(self) -> None:
        """Forget the figures by rank."""
        self._answers = None

    @property
    def worker_fetched(self) -> Mapping[int, int]:
        """Bytes of arguments that each rank fetched from elsewhere; empty for calls that are not among the latest."""
        return {} if self._answers is None else self._answers.whole(0)

    @property
    def produced(self) -> Mapping[int, int]:
        """Bytes of each rank's result, likewise."""
        return {} if self._answers is None else self._answers.whole(1)

    @property
    def started(self) -> Mapping[int, float]:
        """When each rank's method began, likewise."""
        return {} if self._answers is None else self._answers.column(2)

    @property
    def seconds(self) -> Mapping[int, float]:
        """How long each rank's method ran, likewise."""
        return {} if self._answers is None else self._answers.column(3)

    @property
    def fetch_seconds(self) -> Mapping[int, float]:
        """How long each rank fetched its arguments, likewise."""
        return {} if self._answers is None else self._answers.column(4)

    @property
    def queue_seconds(self) -> float:
        """Longest time between the call and the begin of a rank's method, fetching left out."""
        return max(0.0, self._last_begin - self.submitted) if self.answered else 0.0

    @property
    def skew_seconds(self) -> float:
        """Time between the first rank's end and the last one's."""
        return self._last_end - self._first_end if self.answered else 0.0


class Stats:
    """The records of the latest calls, the oldest first.

    Args:
        limit: How many are kept.
        answers: Answers whose figures are kept by rank: those of the latest calls; older calls keep sums.
    """

    def __init__(self, limit: int = 10_000, answers: int = 16_384) -> None:
        self._records: deque[CallRecord] = deque(maxlen=limit)
        self._by_rank: deque[CallRecord] = deque()
        self._left = answers

    def open(self, method: str, group: str, workers: int) -> CallRecord:
        """A new record."""
        record = CallRecord(method, group, workers)
        self._records.append(record)
        self._by_rank.append(record)
        self._left -= workers
        while self._left < 0 and len(self._by_rank) > 1:
            oldest = self._by_rank.popleft()
            oldest.keep_sums_only()
            self._left += oldest.workers
        return record

    def records(self) -> Sequence[CallRecord]:
        """All records that are kept."""
        return list(self._records)
