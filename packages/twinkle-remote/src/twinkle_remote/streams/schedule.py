"""The schedule of a stream: which rows go to which data rank, and which are delivered. No threads, no clocks, no calls.

A row has its position in the source as its number. It is waiting for a stage, at work in one, finished, or gone: it was
delivered, or it is one of the dropped, skipped and refused rows, which are counted. Each row that was read is in one of
these states at a time (`_rows` has all that are not gone).

The bound of lag: a row is begun only if less than `max_lag` batches of rows are begun and not delivered while the loop
uses a batch, or one batch more while it waits for one. In source order these rows are all that come before it, so that
it is in one of the next `max_lag` batches (docs/streams.md has the proof). This is AReaL's rule.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import compress, islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from twinkle_remote.streams.stats import StreamStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Order = Literal["source", "arrival"]
Stale = Literal["use", "drop"]
OnError = Literal["raise", "skip"]
_CHOICES = {"order": ("source", "arrival"), "stale": ("use", "drop"), "on_error": ("raise", "skip")}
_LEAST = {"rows": 1, "ahead": 0, "max_lag": 0}


@dataclass(frozen=True, slots=True)
class Rules:
    """The options by which rows are begun and delivered; see `stream`."""

    rows: int | None = None
    ahead: int = 0
    order: Order = "source"
    max_lag: int | None = None
    stale: Stale = "use"
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not (type(value) is int and value >= least):
                raise ValueError(f"{name}={value!r} is no whole number at or above {least}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is none of {', '.join(map(repr, choices))}")


class StageRule(NamedTuple):
    """Where a stage runs, and what it takes at a time.

    Attributes:
        pool: The workers that it shares with other stages.
        calls: Calls on one data rank at a time.
        many: A call takes many rows, up to the data rank's share of a batch; else it takes one.
    """

    pool: int
    calls: int = 1
    many: bool = True


class StageCall(NamedTuple):
    """Rows that a data rank is given: one call of a stage."""

    stage: int
    rank: int
    rows: tuple[int, ...]


class Delivered(NamedTuple):
    """Rows of a batch, with the versions of their begin and end; and the rows that were left out since the last one."""

    rows: list[int]
    begun: list[int]
    ended: list[int]
    gone: list[int]


@dataclass(slots=True)
class _Row:
    batch: int
    begun: int = -1
    ended: int = -1
    failed: int = -1  # the stage that raised for it, until it is done: it is alone in its calls


class Schedule:
    """Gives rows to the least busy data rank, later stages first, and batches to the loop.

    Args:
        rules: The options; `ahead` is above 0.
        pools: The number of data ranks of each pool of workers.
        stages: At least one.
        first: Position of the first row.
        version: Version of the weights now.
        stats: Where rows are counted by what became of them.
    """

    def __init__(
        self,
        rules: Rules,
        pools: Sequence[int],
        stages: Sequence[StageRule],
        *,
        first: int = 0,
        version: int = 0,
        stats: StreamStats | None = None,
    ) -> None:
        self.rules, self.pools, self.stages = rules, pools, stages
        self.version = version
        self.stats = StreamStats() if stats is None else stats
        self.at_end = False
        self.next_row = first  # position after the last row that was read
        self._rows: dict[int, _Row] = {}  # all that are not gone, in the source's order
        self._batches: dict[int, dict[int, None]] = {}  # the same by the batch of the source
        self._unbegun: deque[int] = deque()
        self._waiting: list[list[int]] = [[] for _ in stages]  # heaps; of the first stage, rows that are made again
        self._finished: dict[int, None] = {}  # in the order of their arrival
        self._usable = [[True] * ranks for ranks in pools]
        loads = {rule.pool: [0] * pools[rule.pool] for rule in stages}  # `def` stages of a pool wait for each other
        self._loads = [loads[rule.pool] if rule.calls == 1 else [0] * pools[rule.pool] for rule in stages]
        self._batch = rules.rows or 1  # rows of a batch; without `rows` the largest one that was read
        self._unused = 0  # rows that are begun and not gone
        self._reads = 0
        self._asked = False
        self._gone: list[int] = []

    # the source

    @property
    def left(self) -> int:
        """Rows that were read and are not gone."""
        return len(self._rows)

    def wants_rows(self) -> bool:
        """Whether the next batch of the source should be read."""
        return not self.at_end and len(self._rows) < self._allowed(asked=True)

    def read(self, count: int, delivered: Iterable[int] = ()) -> None:
        """A batch of the source; some of its rows were delivered before a resume."""
        positions, known = range(self.next_row, self.next_row + count), set(delivered)
        fresh = [row for row in positions if row not in known]
        self.next_row, self._reads = positions.stop, self._reads + 1
        self._rows.update((row, _Row(self._reads)) for row in fresh)
        self._unbegun += fresh
        if fresh:
            self._batches[self._reads] = dict.fromkeys(fresh)
        if self.rules.rows is None:
            self._batch = max(self._batch, count)

    def _allowed(self, *, asked: bool) -> int:
        """Rows that may be begun and not gone."""
        allowed = self.rules.ahead + asked * self._batch
        return allowed if self.rules.max_lag is None else min(allowed, (self.rules.max_lag + asked) * self._batch)

    def _beginnable(self) -> int:
        """Rows that were not begun and may be: with `max_lag` and the source's batches, those of so many."""
        allowed = min(len(self._unbegun), max(0, self._allowed(asked=self._asked) - self._unused))
        if not allowed or self.rules.rows is not None or self.rules.max_lag is None:
            return allowed
        limit = set(islice(self._batches, self.rules.max_lag + self._asked))
        return sum(self._rows[row].batch in limit for row in islice(self._unbegun, allowed))

    # work

    def next_calls(self) -> list[StageCall]:
        """The calls that can begin now: at most one for each of the least busy data ranks of a stage."""
        return next((calls for stage in reversed(range(len(self.stages))) if (calls := self._calls_of(stage))), [])

    def _calls_of(self, stage: int) -> list[StageCall]:
        rule, ready = self.stages[stage], len(self._waiting[stage])
        if stage == 0:
            ready += self._beginnable()
        free = self._free(stage)[:ready] if ready else []
        if not free:
            return []
        most = -(-self._batch // self.pools[rule.pool]) if rule.many else 1
        share, calls = min(most, -(-ready // len(free))), []
        for rank in free:
            if rows := self._next_rows(stage, min(share, ready)):
                ready -= len(rows)
                self._loads[stage][rank] += 1
                calls.append(StageCall(stage, rank, rows))
        return calls

    def _free(self, stage: int) -> list[int]:
        """Data ranks that can take a call, and have equally few."""
        rule, loads = self.stages[stage], self._loads[stage]
        usable = self._usable[rule.pool]
        least = min(compress(loads, usable), default=rule.calls)
        return [rank for rank, load in enumerate(loads) if load == least < rule.calls and usable[rank]]

    def _next_rows(self, stage: int, most: int) -> tuple[int, ...]:
        """The rows of the next call: at most so many, or one for which a stage raised."""
        rows, waiting, alone = list[int](), self._waiting[stage], False
        while len(rows) < most and not alone:
            if waiting:
                alone = self._rows[waiting[0]].failed >= 0
                if alone and rows:
                    break
                rows.append(heappop(waiting))
            else:
                rows.append(self._unbegun.popleft())
                self._unused += 1
        if stage == 0:
            for row in rows:
                self._rows[row].begun = self.version
        return tuple(rows)

    def over(self, stage: int, rank: int) -> None:
        """A call is over, however it went: its data rank may get another one."""
        self._loads[stage][rank] -= 1

    def made(self, call: StageCall, refused: Iterable[int] = ()) -> None:
        """A call returned a row for each row; some of them were refused by `keep`."""
        last = call.stage + 1 == len(self.stages)
        for row in call.rows:
            own = self._rows[row]
            own.failed = -1 if own.failed == call.stage else own.failed
            if last:
                own.ended = self.version
                self._finished[row] = None
            else:
                heappush(self._waiting[call.stage + 1], row)
        for row in refused:
            self.stats.refused += 1
            self._leave_out(row)
        if last:
            self._drop_old([row for row in call.rows if row in self._finished])

    def failed(self, call: StageCall, stage: int | None = None) -> bool:
        """A stage raised: its rows are made again, one a call.

        Args:
            call: Its call.
            stage: The stage from which on they are made again; None for this one.

        Returns:
            False if it raised for the second time for its row, which is alone in the call and not made again.
        """
        if self._rows[call.rows[0]].failed == call.stage:
            return False
        for row in call.rows:
            self._rows[row].failed = call.stage
            heappush(self._waiting[call.stage if stage is None else stage], row)
        return True

    def skip(self, row: int) -> None:
        """Leave out a row for which a stage raised twice."""
        self.stats.skipped += 1
        self._leave_out(row)

    def again(self, rows: Iterable[int], stage: int = 0) -> None:
        """Make rows again from a stage on, because what was made of them is lost; some may be gone, none is at work."""
        lost = self._rows.keys() & set(rows)
        self._waiting = [
            waiting if lost.isdisjoint(waiting) else sorted(set(waiting) - lost) for waiting in self._waiting
        ]
        for row in lost:
            self._finished.pop(row, None)
            heappush(self._waiting[stage], row)
        self.stats.redone += len(lost)

    def set_usable(self, pool: int, rank: int, *, usable: bool) -> None:
        """A data rank takes no more work, or work again."""
        self._usable[pool][rank] = usable

    # the loop

    def publish(self, version: int) -> None:
        """A version of the weights was published."""
        self.version = version
        self._drop_old(list(self._finished))

    def _drop_old(self, rows: Iterable[int]) -> None:
        if self.rules.stale == "use" or self.rules.max_lag is None:
            return
        for row in rows:
            if self._rows[row].begun + self.rules.max_lag < self.version:
                self.stats.dropped += 1
                self._leave_out(row)

    def _leave_out(self, row: int) -> None:
        """A row will not be delivered."""
        self._forget(row)
        self._gone.append(row)

    def _forget(self, row: int) -> None:
        batch = self._rows.pop(row).batch
        self._finished.pop(row, None)
        self._unused -= 1
        del self._batches[batch][row]
        if not self._batches[batch]:
            del self._batches[batch]

    def ask(self) -> None:
        """The loop wants the next batch."""
        self._asked = True

    def ready(self) -> bool:
        """Whether the next batch can be taken."""
        return bool(self._next())

    def take(self) -> Delivered:
        """The next batch; without rows where none is ready, because the epoch is over."""
        rows = self._next()
        self._asked = False
        begun, ended = [self._rows[row].begun for row in rows], [self._rows[row].ended for row in rows]
        self.stats.lag.update(self.version - one for one in begun)
        for row in rows:
            self._forget(row)
        gone, self._gone = self._gone, []
        return Delivered(rows, begun, ended, gone)

    def _next(self) -> list[int]:
        """The rows of the next batch; [] if it is not finished."""
        by_arrival = self.rules.order == "arrival"
        if self.rules.rows is None:
            batches = islice(self._batches.values(), None if by_arrival else 1)
            return next((list(rows) for rows in batches if all(row in self._finished for row in rows)), [])
        wanted = min(self.rules.rows, len(self._rows)) if self.at_end else self.rules.rows
        found = list(islice(self._finished if by_arrival else self._rows, wanted))
        return found if len(found) == wanted and all(row in self._finished for row in found) else []
