"""The metrics of each call of this process: bytes and seconds, measured by the driver and the workers."""

from __future__ import annotations

import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from twinkle_remote.protocol.messages import Outcome

T = TypeVar("T")
_BY_RANK = 5  # metrics of each rank's answer


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
        bytes_fetched: Bytes of arguments that all ranks fetched from elsewhere.
        bytes_produced: Bytes of all ranks' results.
        run_seconds: The duration of the longest rank's method.
        failed: Ranks that failed.
    """

    method: str
    group: str
    workers: int
    label: str = ""
    submitted: float = field(default_factory=time.time)
    driver_seconds: float = 0.0
    driver_sent: int = 0
    driver_fetched: int = 0
    bytes_fetched: int = 0
    bytes_produced: int = 0
    run_seconds: float = 0.0
    failed: Sequence[int] = ()
    _last_begin: float = 0.0
    _first_end: float = inf
    _last_end: float = 0.0
    _ranks: array[int] = field(default_factory=lambda: array("i"), repr=False)
    _metrics: array[float] = field(default_factory=lambda: array("d"), repr=False)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Add the metrics of answers that arrived together; at least one."""
        ends = [outcome.started + outcome.seconds for outcome in outcomes]
        begins = [outcome.started - outcome.fetch_seconds for outcome in outcomes]
        self.bytes_fetched += sum([outcome.fetched for outcome in outcomes])
        self.bytes_produced += sum([outcome.produced for outcome in outcomes])
        self.run_seconds = max(self.run_seconds, *[outcome.seconds for outcome in outcomes])
        self._last_begin = max(self._last_begin, *begins)
        self._first_end = min(self._first_end, *ends)
        self._last_end = max(self._last_end, *ends)
        self.failed = (*self.failed, *[outcome.rank for outcome in outcomes if outcome.failure is not None])
        for one in outcomes:
            self._metrics.extend((one.fetched, one.produced, one.started, one.seconds, one.fetch_seconds))
        self._ranks.extend([one.rank for one in outcomes])

    def add_driver_fetched(self, value: T, size: int) -> T:
        """Count the bytes that came to the driver for a value, which is returned."""
        self.driver_fetched += size
        return value

    @property
    def answered(self) -> int:
        """Number of workers that have answered."""
        return len(self._ranks)

    @property
    def worker_fetched(self) -> Mapping[int, int]:
        """Bytes of arguments that each rank fetched from elsewhere."""
        return {rank: int(value) for rank, value in self._by_rank(0).items()}

    @property
    def produced(self) -> Mapping[int, int]:
        """Bytes of each rank's result."""
        return {rank: int(value) for rank, value in self._by_rank(1).items()}

    @property
    def started(self) -> Mapping[int, float]:
        """When each rank's method began, by the worker's wall clock."""
        return self._by_rank(2)

    @property
    def seconds(self) -> Mapping[int, float]:
        """The duration of each rank's method."""
        return self._by_rank(3)

    @property
    def fetch_seconds(self) -> Mapping[int, float]:
        """The time for which each rank fetched its arguments."""
        return self._by_rank(4)

    def _by_rank(self, index: int) -> dict[int, float]:
        return dict(zip(self._ranks, self._metrics[index::_BY_RANK], strict=True))

    @property
    def queue_seconds(self) -> float:
        """Longest time between the call and the begin of a rank's method, fetching left out."""
        return max(0.0, self._last_begin - self.submitted) if self.answered else 0.0

    @property
    def skew_seconds(self) -> float:
        """Time between the first rank's end and the last one's."""
        return self._last_end - self._first_end if self.answered else 0.0


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
        rows = [head, *map(_row, self._by_method())]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = []
        for row in rows:
            cells = enumerate(zip(row, widths, strict=True))
            lines.append("  ".join(cell.ljust(w) if at < 2 else cell.rjust(w) for at, (cell, w) in cells).rstrip())
        lines.append("run, queued, skew: mean of a call; sent, fetched: by the driver; between workers: arguments")
        return "\n".join(lines)

    def _by_method(self) -> Iterable[Sequence[CallRecord]]:
        """The records of each method of a group, the one that ran longest in all first."""
        found: dict[tuple[str, str], list[CallRecord]] = {}
        for record in self:
            found.setdefault((record.method, record.group), []).append(record)
        return sorted(found.values(), key=lambda together: -sum(record.run_seconds for record in together))


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
        ranks: How many ranks the calls that are kept may have in all: each takes 44 bytes.
    """

    def __init__(self, limit: int = 10_000, ranks: int = 100_000) -> None:
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
