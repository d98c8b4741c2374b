"""The schedule of a stream: which rows go to which data rank, and which are delivered. No threads, no clocks, no calls.

A row has its position in the source as its number. It is waiting for a stage, at work in one, finished, or gone: it was
delivered, or it is one of the dropped, skipped and refused rows, which are counted. Each row that was read is in one of
these states at a time (`_rows` has all that are not gone).

The bound of lag: a row is begun only if less than `max_lag` batches of rows are begun and not delivered while the loop
uses a batch, or one batch more while it waits for one. In source order these rows are all that come before it, so that
it is in one of the next `max_lag` batches (docs/streams.md has the proof). This is AReaL's rule.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Order = Literal["source", "arrival"]
Stale = Literal["use", "drop"]
OnError = Literal["raise", "skip"]
_CHOICES = {"order": ("source", "arrival"), "stale": ("use", "drop"), "on_error": ("raise", "skip")}
_LEAST = {
    "rows": (1, "leave it out to keep the batches of the source"),
    "ahead": (0, "0 is the synchronous loop"),
    "max_lag": (0, "leave it out for no bound"),
}


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
        for name, (least, hint) in _LEAST.items():
            value = getattr(self, name)
            if value is None and name != "ahead":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} is a whole number, got {value!r}; {hint}")
            if value < least:
                raise ValueError(f"{name}={value} is below {least}; {hint}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is none of {', '.join(map(repr, choices))}")


@dataclass(slots=True)
class Counts:
    """Numbers of rows by what became of them: `lag` has those that were delivered, by their lag in versions."""

    lag: Counter[int] = field(default_factory=Counter)
    redone: int = 0
    dropped: int = 0
    skipped: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class StageRule:
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
    failed: int = -1  # the stage that raised for it, until it is done


class _Lane:
    """The data ranks of a pool, for stages that wait for each other there; the least busy one comes first."""

    def __init__(self, ranks: int, calls: int) -> None:
        self.calls = calls
        self.loads = [0] * ranks
        self.usable = [True] * ranks
        self._heap = [(0, rank) for rank in range(ranks)]  # with entries that do not hold any more

    def change(self, rank: int, by: int) -> None:
        """A call begins or ends on a data rank."""
        self.loads[rank] += by
        self._push(rank)

    def set_usable(self, rank: int, *, usable: bool) -> None:
        """A data rank takes no more work, or work again."""
        self.usable[rank] = usable
        self._push(rank)

    def _push(self, rank: int) -> None:
        if self.usable[rank] and self.loads[rank] < self.calls:
            heappush(self._heap, (self.loads[rank], rank))
            if len(self._heap) > 4 * len(self.loads) + 16:
                self._heap = [(load, one) for one, load in enumerate(self.loads) if self.usable[one]]
                heapify(self._heap)

    def least_busy(self, most: int) -> list[int]:
        """Data ranks that can take a call, and have equally few: at most so many."""
        heap, found = self._heap, list[int]()
        while heap and len(found) < most:
            load, rank = heap[0]
            if load != self.loads[rank] or not self.usable[rank] or load >= self.calls or rank in found[-1:]:
                heappop(heap)
            elif found and load != self.loads[found[0]]:
                break
            else:
                found.append(heappop(heap)[1])
        for rank in found:
            heappush(heap, (self.loads[rank], rank))
        return found


class Schedule:
    """Gives rows to the least busy data rank, later stages first, and batches to the loop.

    Args:
        rules: The options; `ahead` is above 0.
        pools: The number of data ranks of each pool of workers.
        stages: At least one.
        first: Position of the first row.
        version: Version of the weights now.
        counts: Where rows are counted.
    """

    def __init__(
        self,
        rules: Rules,
        pools: Sequence[int],
        stages: Sequence[StageRule],
        *,
        first: int = 0,
        version: int = 0,
        counts: Counts | None = None,
    ) -> None:
        self.rules, self.pools, self.stages = rules, pools, stages
        self.version = version
        self.counts = Counts() if counts is None else counts
        self.at_end = False
        self.next_row = first  # position after the last row that was read
        self._rows: dict[int, _Row] = {}  # all that are not gone, in the source's order
        self._unbegun: deque[int] = deque()
        self._waiting: list[list[int]] = [[] for _ in stages]  # heaps; of the first stage, rows that are made again
        self._alone: list[deque[int]] = [deque() for _ in stages]  # rows for which a stage raised, one a call
        self._finished: dict[int, None] = {}  # in the order of their arrival
        self._missing: dict[int, int] = {}  # batches of the source: rows that are not finished
        self._left: dict[int, int] = {}  # batches of the source: rows that are not gone
        lanes: dict[tuple[int, int], _Lane] = {}  # an async stage does not wait for others
        keys = [(one.pool, -1 if one.calls == 1 else index) for index, one in enumerate(stages)]
        for key, one in zip(keys, stages, strict=True):
            lanes.setdefault(key, _Lane(pools[one.pool], one.calls))
        self._lanes = [lanes[key] for key in keys]
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
        return not self.at_end and len(self._rows) < self._room(asked=True)

    def read(self, count: int, delivered: Iterable[int] = ()) -> None:
        """A batch of the source; some of its rows were delivered before a resume."""
        positions, known = range(self.next_row, self.next_row + count), set(delivered)
        fresh = [row for row in positions if row not in known]
        self.next_row, self._reads = positions.stop, self._reads + 1
        self._rows.update((row, _Row(self._reads)) for row in fresh)
        self._unbegun += fresh
        if fresh:
            self._missing[self._reads] = self._left[self._reads] = len(fresh)
        if self.rules.rows is None:
            self._batch = max(self._batch, count)

    def _room(self, *, asked: bool) -> int:
        room = self.rules.ahead + asked * self._batch
        return room if self.rules.max_lag is None else min(room, (self.rules.max_lag + asked) * self._batch)

    def _beginnable(self) -> int:
        """Rows that were not begun and may be: with `max_lag` and the source's batches, those of so many."""
        room = min(len(self._unbegun), max(0, self._room(asked=self._asked) - self._unused))
        if not room or self.rules.rows is not None or self.rules.max_lag is None:
            return room
        limit = set(islice(self._left, self.rules.max_lag + self._asked))
        return sum(self._rows[row].batch in limit for row in islice(self._unbegun, room))

    # work

    def next_calls(self) -> list[StageCall]:
        """The calls that can begin now: at most one for each of the least busy data ranks of a stage."""
        return next((calls for stage in reversed(range(len(self.stages))) if (calls := self._calls_of(stage))), [])

    def _calls_of(self, stage: int) -> list[StageCall]:
        rule, ready = self.stages[stage], len(self._waiting[stage]) + len(self._alone[stage])
        if stage == 0:
            ready += self._beginnable()
        free = self._lanes[stage].least_busy(ready) if ready else []
        if not free:
            return []
        most = -(-self._batch // self.pools[rule.pool]) if rule.many else 1
        share, calls = min(most, -(-ready // len(free))), []
        for rank in free:
            if rows := self._next_rows(stage, min(share, ready)):
                ready -= len(rows)
                self._lanes[stage].change(rank, 1)
                calls.append(StageCall(stage, rank, rows))
        return calls

    def _next_rows(self, stage: int, most: int) -> tuple[int, ...]:
        """The rows of the next call: at most so many, or one for which the stage raised."""
        if most and self._alone[stage]:
            rows = [self._alone[stage].popleft()]
        else:
            rows = []
            for _ in range(most):
                if self._waiting[stage]:
                    rows.append(heappop(self._waiting[stage]))
                else:
                    rows.append(self._unbegun.popleft())
                    self._unused += 1
        if stage == 0:
            for row in rows:
                self._rows[row].begun = self.version
        return tuple(rows)

    def over(self, stage: int, rank: int) -> None:
        """A call is over, however it went: its data rank may get another one."""
        self._lanes[stage].change(rank, -1)

    def made(self, call: StageCall, refused: Iterable[int] = ()) -> None:
        """A call returned a row for each row; some of them were refused by `keep`."""
        last = call.stage + 1 == len(self.stages)
        for row in call.rows:
            own = self._rows[row]
            own.failed = -1 if own.failed == call.stage else own.failed
            if last:
                own.ended = self.version
                self._finished[row] = None
                self._missing[own.batch] -= 1
            else:
                self._wait(row, call.stage + 1)
        for row in refused:
            self.counts.refused += 1
            self._let_go(row)
        if last and self.rules.stale == "drop":
            self._drop_old([row for row in call.rows if row in self._finished])

    def _wait(self, row: int, stage: int) -> None:
        if self._rows[row].failed >= 0:
            self._alone[stage].append(row)
        else:
            heappush(self._waiting[stage], row)

    def failed(self, call: StageCall, stage: int | None = None) -> bool:
        """A stage raised: its rows are made again, one a call; whether it raised for the second time for its row.

        Args:
            call: Its call.
            stage: The stage from which on they are made again; None for this one.
        """
        again = self._rows[call.rows[0]].failed == call.stage  # such a row is alone in its call
        if again and self.rules.on_error == "skip":
            self.counts.skipped += 1
            self._let_go(call.rows[0])
            return True
        for row in call.rows:
            self._rows[row].failed = call.stage
            self._wait(row, call.stage if stage is None else stage)
        return again

    def again(self, rows: Iterable[int], stage: int = 0) -> None:
        """Make the rows of a call that is over again from a stage on, because what was made of them is lost."""
        for row in rows:
            own = self._rows[row]
            if row in self._finished:
                del self._finished[row]
                self._missing[own.batch] += 1
            self.counts.redone += 1
            self._wait(row, stage)

    def withdraw(self, rows: Iterable[int]) -> None:
        """Make rows again that wait for a stage or are finished, because what was made of them is lost."""
        lost = set(rows)
        for stage, waiting in enumerate(self._waiting):
            if not lost.isdisjoint(waiting):
                self._waiting[stage] = [row for row in waiting if row not in lost]
                heapify(self._waiting[stage])
        self._alone = [deque(row for row in waiting if row not in lost) for waiting in self._alone]
        self.again(sorted(lost))

    def set_usable(self, pool: int, rank: int, *, usable: bool) -> None:
        """A data rank takes no more work, or work again."""
        for lane in {lane for lane, one in zip(self._lanes, self.stages, strict=True) if one.pool == pool}:
            lane.set_usable(rank, usable=usable)

    # the loop

    def publish(self, version: int) -> None:
        """A version of the weights was published."""
        self.version = version
        if self.rules.stale == "drop":
            self._drop_old(list(self._finished))

    def _drop_old(self, rows: Iterable[int]) -> None:
        for row in rows:
            if self.rules.max_lag is not None and self._rows[row].begun + self.rules.max_lag < self.version:
                self.counts.dropped += 1
                self._let_go(row)

    def _let_go(self, row: int) -> None:
        """A row will not be delivered."""
        self._forget(row)
        self._gone.append(row)

    def _forget(self, row: int) -> None:
        own = self._rows.pop(row)
        self._unused -= 1
        if row in self._finished:
            del self._finished[row]
        else:
            self._missing[own.batch] -= 1
        self._left[own.batch] -= 1
        if not self._left[own.batch]:
            del self._left[own.batch], self._missing[own.batch]

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
        self.counts.lag.update(self.version - one for one in begun)
        for row in rows:
            self._forget(row)
        gone, self._gone = self._gone, []
        return Delivered(rows, begun, ended, gone)

    def _next(self) -> list[int]:
        """The rows of the next batch; [] if it is not finished."""
        if self.rules.rows is None:
            whole = (batch for batch, missing in self._missing.items() if not missing)
            batch = next(whole, None) if self.rules.order == "arrival" else next(iter(self._missing), None)
            if batch is None or self._missing[batch]:
                return []
            return sorted(row for row in self._finished if self._rows[row].batch == batch)
        wanted = min(self.rules.rows, len(self._rows)) if self.at_end else self.rules.rows
        found = list(islice(self._finished if self.rules.order == "arrival" else self._rows, wanted))
        return found if len(found) == wanted and all(row in self._finished for row in found) else []
