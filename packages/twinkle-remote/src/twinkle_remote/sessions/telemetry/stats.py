"""The metrics of each call: bytes and seconds, measured by the driver and the workers."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from heapq import merge
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from twinkle_remote.sessions.telemetry.reply_figures import ReplyFigures

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from twinkle_remote.protocol.messages import Outcome

T = TypeVar("T")
_submitted = attrgetter("submitted")
_MOST_SHOWN = 12  # columns of a method in the table


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
        answered: Number of workers that have answered.
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
    answered: int = 0
    bytes_fetched: int = 0
    bytes_produced: int = 0
    run_seconds: float = 0.0
    failed: Sequence[int] = ()
    _last_begin: float = 0.0
    _first_end: float = inf
    _last_end: float = 0.0
    _answers: ReplyFigures | None = field(default_factory=ReplyFigures, repr=False)
    _columns: dict[str, int] | None = None
    _driver_columns: dict[str, int] | None = None

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
        if self._answers is not None:
            self._answers.add(outcomes)
        self.answered += len(outcomes)
        with_columns = [outcome.fetched_columns for outcome in outcomes if outcome.fetched_columns]
        if with_columns:
            from twinkle_remote.values.column_bytes import merge_columns  # few calls fetch columns

            for of_rank in with_columns:
                self._columns = merge_columns(self._columns, of_rank)

    def add_driver_fetched(self, value: T, size: int) -> T:
        """Count the bytes that came to the driver for a value, which is returned."""
        if size:
            from twinkle_remote.values.column_bytes import count_columns  # small results come with their answers

            self.driver_fetched += size
            self._driver_columns = count_columns(self._driver_columns, value, size)
        return value

    def keep_sums_only(self) -> None:
        """Drop the metrics by rank."""
        self._answers = None

    @property
    def worker_fetched(self) -> Mapping[int, int]:
        """Bytes of arguments that each rank fetched from elsewhere; empty for calls that are not among the latest."""
        return {} if self._answers is None else self._answers.whole(0)

    @property
    def fetched_by_column(self) -> Mapping[str | None, int]:
        """`bytes_fetched` by the names of the columns; None stands for what belongs to no column."""
        return _with_rest(self._columns, self.bytes_fetched)

    @property
    def driver_fetched_by_column(self) -> Mapping[str | None, int]:
        """`driver_fetched`, likewise."""
        return _with_rest(self._driver_columns, self.driver_fetched)

    @property
    def worker_fetched_by_column(self) -> Mapping[int, Mapping[str | None, int]]:
        """`worker_fetched` of each rank, likewise; empty for calls that are not among the latest."""
        columns = {} if self._answers is None else self._answers.fetched_columns
        return {rank: _with_rest(columns.get(rank), nbytes) for rank, nbytes in self.worker_fetched.items()}

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
        """The duration of each rank's method, likewise."""
        return {} if self._answers is None else self._answers.column(3)

    @property
    def fetch_seconds(self) -> Mapping[int, float]:
        """The time for which each rank fetched its arguments, likewise."""
        return {} if self._answers is None else self._answers.column(4)

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
        lines += filter(None, map(_columns_as_text, self._by_method()))
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


def _with_rest(columns: Mapping[str, int] | None, total: int) -> Mapping[str | None, int]:
    """Bytes by column, and those of no column, if there are some."""
    found: dict[str | None, int] = {} if columns is None else dict(columns.items())
    rest = total - sum(found.values())
    return {**found, None: rest} if rest else found


def _columns_as_text(together: Sequence[CallRecord]) -> str | None:
    """The bytes by column that the calls of one method fetched, the largest first; None without columns."""
    found: dict[str | None, int] = {}
    for record in together:
        for name, nbytes in record.fetched_by_column.items():
            found[name] = found.get(name, 0) + nbytes
    if not found.keys() - {None}:
        return None
    ordered = sorted(found.items(), key=lambda item: -item[1])
    shown = [f"{'(no column)' if name is None else name} {_bytes(nbytes)}" for name, nbytes in ordered[:_MOST_SHOWN]]
    more = [f"{len(ordered) - _MOST_SHOWN} more"] if len(ordered) > _MOST_SHOWN else []
    return f"{together[0].method} between workers: {', '.join(shown + more)}"


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
        limit: How many are kept.
        answers: Number of latest calls whose metrics are kept by rank; older calls keep sums.

    Attributes:
        since: Calls that workers submitted before that time of the wall clock, in seconds, are not kept.
    """

    def __init__(self, limit: int = 10_000, answers: int = 16_384) -> None:
        self.since = 0.0
        self._answers = answers
        self._of_workers: dict[Hashable, Sequence[CallRecord]] = {}
        self._records: deque[CallRecord] = deque(maxlen=limit)
        self._syncs: deque[SyncRecord] = deque(maxlen=limit)
        self._by_rank: deque[CallRecord] = deque()
        self._left = answers

    def open(self, method: str, group: str, workers: int, submitted: float) -> CallRecord:
        """A new record of a call; it was submitted at this time of the wall clock, in seconds."""
        record = CallRecord(method, group, workers, submitted=submitted)
        self._records.append(record)
        self._by_rank.append(record)
        self._left -= workers
        while self._left < 0 and len(self._by_rank) > 1:
            oldest = self._by_rank.popleft()
            oldest.keep_sums_only()
            self._left += oldest.workers
        return record

    def own(self, since: float = 0.0) -> CallRecords:
        """The records of this process's own calls.

        Args:
            since: Without calls that were submitted earlier, in seconds of the wall clock.
        """
        return CallRecords([record for record in tuple(self._records) if record.submitted >= since])

    def take(self, of_workers: Mapping[Hashable, Sequence[CallRecord]]) -> None:
        """Take the records of the calls that worker processes made: of each, all that are not older than `since`.

        Those of a worker that reports nothing stay as they were. The latest ones of all workers are kept, by the same
        limits as this process's own.
        """
        merged = {**self._of_workers, **of_workers}
        limit = self._records.maxlen or 0
        latest = list(merge(*merged.values(), key=_submitted))[-limit:]
        if len(latest) == limit:
            self.since = max(self.since, latest[0].submitted)
        left = self._answers
        for record in reversed(latest):
            left -= record.workers
            if left < 0:
                record.keep_sums_only()
        kept = {id(record) for record in latest}
        fresh = {key: [record for record in records if id(record) in kept] for key, records in merged.items()}
        self._of_workers = {key: records for key, records in fresh.items() if records}

    def records(self) -> CallRecords:
        """All records that are kept: of this process's calls, and of those that workers reported, by their clocks."""
        made = merge(self.own(), *self._of_workers.values(), key=_submitted)
        return CallRecords(deque(made, maxlen=self._records.maxlen))

    def synced(self, record: SyncRecord) -> None:
        """A component has new weights."""
        self._syncs.append(record)

    def syncs(self) -> Sequence[SyncRecord]:
        """All weight syncs that are kept."""
        return list(self._syncs)
