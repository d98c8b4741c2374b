"""One stream of random events over numbered rows, for the laws of the schedule.

`TWINKLE_SCHEDULE_EXAMPLES=8000 pytest -m "" tests/remote/streams/schedule` tries as many for each law.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from hypothesis import settings
from hypothesis import strategies as st

from twinkle_remote.streams.options import StreamRules
from twinkle_remote.streams.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.streams.schedule.decisions import StageCall
    from twinkle_remote.streams.schedule.intake import Intake

MANY = settings(max_examples=int(os.environ.get("TWINKLE_SCHEDULE_EXAMPLES", "150")), deadline=None)
KEEPS = ("use", "wait", "redo")
rules = st.builds(
    StreamRules,
    rows=st.none() | st.integers(1, 7),
    ahead=st.integers(1, 30),
    order=st.sampled_from(["arrival", "source"]),
    max_lag=st.none() | st.integers(0, 4),
    stale=st.sampled_from(KEEPS),
    chunk=st.none() | st.integers(1, 5),
    at_once=st.none() | st.integers(1, 3),
)
sizes = st.lists(st.integers(0, 9), max_size=12)
shapes = st.sampled_from([([1], [0]), ([4], [0]), ([3, 2], [0, 1]), ([2], [0, 0]), ([2, 3, 1], [0, 1, 2])])
seeds = st.integers(0, 2**32)
Shape: TypeAlias = "tuple[list[int], list[int]]"


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
    a_batch: tuple[int, ...] = ()  # versions after each delivered batch, in turn, in place of `publishes`
    outside: float = 0.0  # versions while the loop waits
    intakes: list[Intake] | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.schedule = Scheduler(
            self.rules, self.pools, self.stages, first=self.first, version=self.version, intakes=self.intakes
        )
        self.tail = self.random.choice([0.0, 0.7, 0.97])
        self.unread = list(self.sizes)
        self.working: dict[int, int] = {}  # chunk -> its stage
        self.results: dict[int, list[int]] = {}  # chunk -> the rows of its result
        self.delivered: list[list[int]] = []
        self.lags: list[int] = []
        self.begun_again: Counter[int] = Counter()  # row -> begins
        self.begun_first: set[int] = set()  # rows that were begun before the first version
        self.beyond: set[int] = set()  # rows whose lag was above max_lag
        self.from_outside = 0
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
        if self.asked and self.random.random() < self.outside:
            self.from_outside += 1
            schedule.published(schedule.version + 1)
            return True
        if self.asked and schedule.ready() and self.random.random() < 0.7:
            self.take()
            return True
        if works := schedule.next_works():
            self.begin_all(works)
            return True
        self.nothing_waits()
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

    def nothing_waits(self) -> None:
        """Nothing more is begun now: for laws about what waits."""

    def begin_all(self, works: Sequence[StageCall]) -> None:
        """Data ranks begin calls, one each."""
        for work in works:
            self.begin(work)

    def begin(self, work: StageCall) -> None:
        """A data rank begins a call; the chunks of one call may end one after the other."""
        for part in work.parts:
            rows = list(range(part.first, part.first + part.rows))
            if work.stage == 0:
                self.results[part.chunk] = rows
                self.begun_again.update(rows)
                if part.version == 0:
                    self.begun_first.update(rows)
            assert self.results[part.chunk] == rows, "a later stage reads the rows that the chunk stands for"
            assert part.chunk not in self.working
            self.working[part.chunk] = work.stage

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
            if self.rules.max_lag is not None and version - part.begun > self.rules.max_lag:
                self.beyond.update(want)
            self.lags += [version - part.begun] * part.rows
            assert 0 <= part.begun <= part.ended <= version
        assert batch, "no batch is empty"
        self.delivered.append(batch)
        self.asked = False
        if self.a_batch:
            for _ in range(self.a_batch[len(self.delivered) % len(self.a_batch)]):
                self.schedule.published(self.schedule.version + 1)
            return
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
