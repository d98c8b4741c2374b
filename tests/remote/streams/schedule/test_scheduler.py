"""Laws of the schedule over random interleavings of its events."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinkle_remote.streams.rules import StreamRules
from twinkle_remote.streams.schedule.scheduler import LATE, Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

MANY = settings(max_examples=400, deadline=None)
KEEPS = ("use", "wait", "redo")
rules = st.builds(
    StreamRules,
    rows=st.none() | st.integers(1, 7),
    ahead=st.integers(1, 30),
    order=st.sampled_from(["arrival", "source"]),
    max_lag=st.none() | st.integers(0, 4),
    stale=st.sampled_from(KEEPS),
    chunk=st.integers(1, 5),
    at_once=st.integers(1, 3),
)
sizes = st.lists(st.integers(0, 9), max_size=12)
shapes = st.sampled_from([([1], [0]), ([4], [0]), ([3, 2], [0, 1]), ([2], [0, 0]), ([2, 3, 1], [0, 1, 2])])
seeds = st.integers(0, 2**32)
long = st.lists(st.integers(4, 9), min_size=5, max_size=12)
waits = st.builds(
    StreamRules,
    rows=st.none() | st.integers(1, 4),
    ahead=st.integers(10, 40),
    order=st.sampled_from(["arrival", "source"]),
    max_lag=st.integers(0, 3),
    stale=st.just("wait"),
    chunk=st.integers(1, 3),
    at_once=st.integers(1, 3),
)


@dataclass
class RandomRun:
    """One stream over a source of numbered rows; the seed chooses which event comes next."""

    rules: StreamRules
    sizes: list[int]
    pools: list[int]
    stages: list[int]
    seed: int
    publishes: float = 0.5  # versions after each delivered batch; below 1 at most one
    faults: float = 0.0
    poisonous: frozenset[int] = frozenset()
    consumed: list[tuple[int, int]] = field(default_factory=list)
    made: dict[int, tuple[int, int]] = field(default_factory=dict)
    version: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.schedule = Scheduler(self.rules, self.pools, self.stages, first=self.first, version=self.version)
        self.tail = self.random.choice([0.0, 0.7, 0.97])
        self.unread = list(self.sizes)
        self.working: dict[int, int] = {}  # chunk -> its stage
        self.results: dict[int, list[int]] = {}  # chunk -> the rows of its result
        self.delivered: list[list[int]] = []
        self.lags: list[int] = []
        self.aside: list[int] = []
        self.asked = False
        self.lost_ranks: list[tuple[int, int]] = []

    def run(self, most: int = 1_000_000) -> bool:
        """Take events until all rows are delivered, or for `most` events; whether the epoch is over."""
        return any(not self.step() for _ in range(most))

    def step(self) -> bool:
        schedule = self.schedule
        if schedule.wants_rows():
            if self.unread:
                schedule.read(self.unread.pop(0), consumed=self.consumed, made=self.made)
            else:
                schedule.source_ended()
            return True
        if not self.asked and self.random.random() < 0.3:
            self.asked = True
            schedule.ask()
        if self.asked and schedule.ready() and self.random.random() < 0.7:
            self.take()
            return True
        if (work := schedule.next_work()) is not None:
            self.begin(work)
            return True
        if self.working and self.random.random() < 0.9:
            latest = self.random.random() < self.tail  # the earliest ones take long
            self.end(list(self.working)[-1] if latest else self.random.choice(list(self.working)))
            return True
        if self.lost_ranks:
            schedule.rank_back(*self.lost_ranks.pop())
            return True
        if self.working or not self.asked:
            return True
        if schedule.ready() or schedule.wants_rows():
            return True
        assert schedule.at_end, "the loop waits, nothing is at work, and no row may be begun"
        assert schedule.left == 0, f"{schedule.left} rows are left and nothing is at work"
        return False

    def begin(self, work: Any) -> None:
        rows = list(range(work.first, work.first + work.rows))
        if work.stage == 0:
            self.results[work.chunk] = rows
        assert self.results[work.chunk] == rows, "a later stage reads the rows that the chunk stands for"
        assert work.chunk not in self.working
        self.working[work.chunk] = work.stage

    def end(self, chunk: int) -> None:
        schedule, stage = self.schedule, self.working.pop(chunk)
        rows = self.results[chunk]
        if stage == len(self.stages) - 1 and self.poisonous.intersection(rows):
            self.replace(chunk, schedule.failed(chunk))
        elif self.random.random() < self.faults:
            if self.random.random() < 0.5:
                self.lose_rank(stage, schedule.chunks.rank[chunk])
                self.replace(chunk, schedule.lost(chunk, self.random.choice([0, stage])))
            else:
                self.replace(chunk, schedule.failed(chunk))
        else:
            schedule.finished(chunk)

    def lose_rank(self, stage: int, rank: int) -> None:
        pool = self.stages[stage]
        if self.schedule.pools[pool].usable > 1:
            self.schedule.rank_lost(pool, rank)
            self.lost_ranks.append((pool, rank))

    def replace(self, chunk: int, parts: Iterable[int]) -> None:
        rows = self.results.pop(chunk)
        parts = list(parts)
        if not parts:
            self.aside += rows
        elif len(parts) == 1:
            self.results[parts[0]] = rows
        else:
            self.results |= {part: [row] for part, row in zip(parts, rows, strict=True)}

    def take(self) -> None:
        version = self.schedule.version
        batch = []
        for part in self.schedule.take():
            rows = self.results.get(part.chunk)
            want = list(range(part.first, part.first + part.rows))
            if rows is not None and part.first not in self.made:
                assert rows[part.offset : part.offset + part.rows] == want
            if part.whole:
                self.results.pop(part.chunk, None)
            batch += want
            self.lags += [version - part.begun] * part.rows
            assert 0 <= part.begun <= part.ended <= version
        assert batch, "no batch is empty"
        self.delivered.append(batch)
        self.asked = False
        while self.random.random() < self.publishes:
            self.schedule.published(self.schedule.version + 1)
            if self.publishes < 1:
                break

    @property
    def rows(self) -> list[int]:
        return [row for batch in self.delivered for row in batch]


def made(rule: StreamRules, counts: list[int], shape: tuple[list[int], list[int]], seed: int, **more: Any) -> RandomRun:
    run = RandomRun(rule, counts, *shape, seed, **more)
    assert run.run()
    return run


@MANY
@given(rules, sizes, shapes, seeds, st.sampled_from([0.0, 0.05]))
def test_each_row_is_delivered_once(
    rule: StreamRules, counts: list[int], shape: tuple[list[int], list[int]], seed: int, faults: float
) -> None:
    run = made(rule, counts, shape, seed, faults=faults)
    assert sorted(run.rows + run.aside) == list(range(sum(counts)))
    assert run.schedule.counts.delivered == len(run.rows)
    assert run.schedule.counts.set_aside == len(run.aside)
    assert len(run.schedule.chunks) == 0


@MANY
@given(rules, sizes, shapes, seeds)
def test_order_source_is_the_order_of_the_source(
    rule: StreamRules, counts: list[int], shape: tuple[list[int], list[int]], seed: int
) -> None:
    if rule.order == "source":
        run = made(rule, counts, shape, seed, faults=0.03)
        assert run.rows == sorted(run.rows)


@MANY
@given(rules, sizes, shapes, seeds, st.sampled_from([0.5, 0.9]))
def test_batches_have_the_rows_that_were_asked_for(
    rule: StreamRules, counts: list[int], shape: tuple[list[int], list[int]], seed: int, publishes: float
) -> None:
    run = made(rule, counts, shape, seed, publishes=publishes)
    if rule.rows is None:
        edges = [sum(counts[:i]) for i in range(len(counts) + 1)]
        whole = [list(range(a, b)) for a, b in pairwise(edges) if a < b]
        assert sorted(run.delivered) == whole
        assert run.delivered == whole or rule.order == "arrival"
    else:
        assert all(len(batch) == rule.rows for batch in run.delivered[:-1])


@pytest.mark.slow
@MANY
@given(waits, long, shapes, seeds, st.sampled_from([0.5, 0.999]), st.sampled_from([0.0, 0.05]))
def test_the_bound_of_wait_is_hard(
    rule: StreamRules, counts: list[int], shape: tuple[list[int], list[int]], seed: int, publishes: float, faults: float
) -> None:
    run = made(rule, counts, shape, seed, publishes=publishes, faults=faults)
    assert rule.max_lag is not None
    assert max(run.lags, default=0) <= rule.max_lag
    if not faults:
        assert run.schedule.counts.redone == 0, "one version for each batch: waiting alone keeps the bound"


def whole_batches(ahead: int, max_lag: int, chunk: int, at_once: int) -> StreamRules:
    return StreamRules(
        rows=None, ahead=ahead, order="arrival", max_lag=max_lag, stale="wait", chunk=chunk, at_once=at_once
    )


@MANY
@given(waits, long, shapes, seeds, st.integers(2, 4), st.sampled_from([0.0, 0.1]))
# Two batches were begun under one version; the rest of a batch that all others wait for was not admitted.
@example(whole_batches(10, 3, 1, 2), [4, 4, 4, 7, 7], ([1], [0]), 2923, 3, 0.0)
@example(whole_batches(6, 2, 3, 3), [8, 4, 4, 9, 6], ([2], [0, 0]), 3617591002, 2, 0.0)
@example(whole_batches(12, 4, 2, 2), [1, 5, 5, 6, 1, 4, 9, 5, 5], ([3, 2], [0, 1]), 2650061080, 4, 0.1)
@pytest.mark.slow
def test_the_bound_of_wait_is_hard_at_several_versions_a_batch(
    rule: StreamRules, counts: list[int], shape: tuple[list[int], list[int]], seed: int, versions: int, faults: float
) -> None:
    run = RandomRun(rule, counts, *shape, seed, publishes=0.0, faults=faults)
    for _ in range(100_000):
        before = len(run.delivered)
        if not run.step():
            break
        if len(run.delivered) > before:
            for _ in range(versions):
                run.schedule.published(run.schedule.version + 1)
    assert sorted(run.rows + run.aside) == list(range(sum(counts)))
    assert rule.max_lag is not None
    beyond = sum(lag > rule.max_lag for lag in run.lags)
    assert beyond <= run.schedule.counts.redone, "a row goes beyond the bound only after it was made again once"


@MANY
@given(rules, sizes, shapes, seeds)
def test_what_is_dropped_is_counted(
    rule: StreamRules, counts: list[int], shape: tuple[list[int], list[int]], seed: int
) -> None:
    lag = 0 if rule.max_lag is None else rule.max_lag
    fields = {name: getattr(rule, name) for name in ("rows", "ahead", "order", "chunk", "at_once")}
    run = made(StreamRules(**fields, max_lag=lag, stale="drop"), counts, shape, seed, publishes=0.999)
    assert len(set(run.rows)) == len(run.rows)
    assert len(run.rows) + run.schedule.counts.dropped == sum(counts)
    assert max(run.lags, default=0) <= lag


@MANY
@given(rules, sizes, shapes, seeds)
def test_a_row_is_redone_once_then_waited_for(
    rule: StreamRules, counts: list[int], shape: tuple[list[int], list[int]], seed: int
) -> None:
    fields = {name: getattr(rule, name) for name in ("rows", "ahead", "order", "chunk", "at_once")}
    run = made(StreamRules(**fields, max_lag=0, stale="redo"), counts, shape, seed, publishes=0.999)
    assert sorted(run.rows) == list(range(sum(counts)))
    assert run.schedule.counts.redone <= sum(counts)


@MANY
@given(rules, sizes, shapes, seeds, st.sets(st.integers(0, 60), max_size=5))
def test_poisonous_rows_are_set_aside_and_no_others(
    rule: StreamRules, counts: list[int], shape: tuple[list[int], list[int]], seed: int, poison: set[int]
) -> None:
    run = made(rule, counts, shape, seed, poisonous=frozenset(poison), publishes=0.0)
    assert sorted(run.aside) == sorted(row for row in poison if row < sum(counts))
    assert sorted(run.rows + run.aside) == list(range(sum(counts)))


@MANY
@given(rules, sizes, shapes, shapes, seeds, st.integers(0, 200), st.booleans())
@example(StreamRules(rows=2, ahead=3, max_lag=0), [3, 3], ([1], [0]), ([4], [0]), 1, 12, True)
@pytest.mark.slow
def test_a_state_at_any_event_resumes_on_another_shape(
    rule: StreamRules,
    counts: list[int],
    shape: tuple[list[int], list[int]],
    other: tuple[list[int], list[int]],
    seed: int,
    events: int,
    spooled: bool,
) -> None:
    run = RandomRun(rule, counts, *shape, seed, faults=0.02)
    run.run(events)
    schedule = run.schedule
    still_open = [row for a, b in schedule.open_rows() for row in range(a, b)]
    gone = sorted(set(range(schedule.rows_read)) - set(still_open))
    chunks = schedule.chunks
    finished = {
        row: (chunks.begun[chunk], chunks.ended[chunk])
        for chunk in chunks.live()
        if chunks.state[chunk] == 2
        for row in range(chunks.first[chunk], chunks.first[chunk] + chunks.count[chunk])
    }
    second = made(
        rule,
        counts,
        other,
        seed + 1,
        consumed=[(row, row + 1) for row in gone],
        made=finished if spooled else {},
        version=schedule.version,
    )
    assert sorted(run.rows + run.aside + second.rows + second.aside) == list(range(sum(counts)))
    if rule.stale == "wait" and rule.max_lag is not None:
        assert max(second.lags, default=0) <= rule.max_lag


def test_pacing_counts_rows_that_the_loop_used() -> None:
    schedule = Scheduler(StreamRules(rows=4, ahead=100, order="arrival", max_lag=1), [64], [0])
    schedule.read(64)

    def begin() -> int:
        rows = 0
        while schedule.next_work() is not None:
            rows += 1
        return rows

    schedule.ask()
    assert begin() == 8, "(max_lag + 1) x batch"
    for chunk in range(4):
        schedule.finished(chunk)
    assert schedule.ready()
    assert sum(part.rows for part in schedule.take()) == 4
    assert begin() == 0, "the loop still uses its batch"
    schedule.published(1)
    assert begin() == 4, "a version is published"
    schedule.ask()
    for chunk in range(4, 8):
        schedule.finished(chunk)
    schedule.take()
    schedule.ask()
    assert begin() == 4, "the loop asks again, without a version"


def test_work_goes_to_the_least_busy_rank() -> None:
    schedule = Scheduler(StreamRules(rows=8, ahead=8, at_once=2), [3], [0])
    schedule.read(16)
    works = [work for _ in range(6) if (work := schedule.next_work())]
    assert [work.rank for work in works] == [0, 1, 2, 0, 1, 2]
    assert schedule.next_work() is None
    schedule.finished(works[4].chunk)
    work = schedule.next_work()
    assert work is not None
    assert work.rank == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows=0 is below 1"),
        ({"ahead": -1}, "ahead=-1 is below 0"),
        ({"order": "random"}, "order='random' is none of 'arrival', 'source'"),
        ({"max_lag": -1}, "max_lag=-1 is below 0"),
        ({"stale": "keep"}, "stale='keep' is none of"),
        ({"chunk": 0}, "chunk=0 is below 1"),
        ({"at_once": 0}, "at_once=0 is below 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamRules(**options)


def test_a_fraction_is_no_count() -> None:
    with pytest.raises(TypeError, match=r"ahead is a whole number, got 1\.5"):
        StreamRules(ahead=1.5)  # type: ignore[arg-type]


def test_deaths_leave_no_row_out_and_deadlines_do() -> None:
    schedule = Scheduler(StreamRules(rows=1, ahead=2), [3], [0])
    schedule.read(2)
    schedule.ask()
    for _ in range(300):
        work = schedule.next_work()
        assert work is not None
        assert schedule.lost(work.chunk)
    assert schedule.counts.set_aside == 0
    for attempt in range(LATE):
        work = schedule.next_work()
        assert work is not None
        assert work.first == 0
        assert bool(schedule.lost(work.chunk, late=True)) == (attempt + 1 < LATE)
    assert schedule.counts.set_aside == 1
