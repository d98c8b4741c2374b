"""Laws of the schedule, over random runs: each row once, in order, within its lag, never stuck.

`TWINKLE_SCHEDULE_EXAMPLES=8000 pytest tests/remote/streams/test_schedule.py` tries as many.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_remote.streams.schedule import Rules, Schedule, StageCall, StageRule

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = int(os.environ.get("TWINKLE_SCHEDULE_EXAMPLES", "600"))
SHAPES: Sequence[tuple[list[int], list[int]]] = [
    ([1], [0]),
    ([4], [0]),
    ([3, 2], [0, 1]),
    ([2], [0, 0]),
    ([2, 3, 1], [0, 1, 2]),
]


@dataclass
class Run:
    """One stream over a source of numbered rows; the seed draws the options, and which event comes next."""

    seed: int
    working: list[StageCall] = field(default_factory=list)
    got: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    left_out: set[int] = field(default_factory=set)
    redone: set[int] = field(default_factory=set)
    lost: list[tuple[int, int]] = field(default_factory=list)
    asked: bool = False

    def __post_init__(self) -> None:
        draw = self.draw = Random(self.seed)
        self.rules = Rules(
            rows=draw.choice([None, 1, 2, 5, 7]),
            ahead=draw.randint(1, 30),
            order=draw.choice(["source", "arrival"]),
            max_lag=draw.choice([None, 0, 1, 2, 4]),
            stale=draw.choice(["use", "use", "drop"]),
        )
        self.pools, of_stage = draw.choice(SHAPES)
        self.stages = []
        for pool in of_stage:
            is_async = draw.random() < 0.4
            self.stages.append(StageRule(pool, draw.randint(2, 5) if is_async else 1, not is_async))
        self.sizes = [draw.randint(0, 9) for _ in range(draw.randint(0, 14))]
        self.rows = range(sum(self.sizes))
        self.known = {row for row in self.rows if draw.random() < 0.1} if draw.random() < 0.3 else set[int]()
        self.faults = draw.choice([0.0, 0.0, 0.1])
        self.refuses = draw.choice([0.0, 0.0, 0.2])
        self.tail = draw.choice([0.0, 0.7, 0.97])  # the first calls take long
        self.versions = draw.choice([0, 1, 1, 1, 2])  # after each batch
        self.schedule = Schedule(self.rules, self.pools, self.stages)
        self.usable = {(pool, rank) for pool, ranks in enumerate(self.pools) for rank in range(ranks)}

    def run(self) -> None:
        for _ in range(100_000):
            if not self.step():
                return self.check()
        raise AssertionError("the epoch does not end")

    def step(self) -> bool:
        schedule, draw = self.schedule, self.draw
        if schedule.wants_rows():
            if self.sizes:
                schedule.read(self.sizes.pop(0), self.known)
            else:
                schedule.at_end = True
        elif not self.asked and draw.random() < 0.3:
            self.asked = True
            schedule.ask()
        elif self.asked and schedule.ready() and draw.random() < 0.7:
            self.take()
        elif calls := schedule.next_calls():
            self.begin(calls)
        elif self.working and draw.random() < 0.9:
            self.end(self.working.pop(-1 if draw.random() < self.tail else draw.randrange(len(self.working))))
        elif self.lost:
            rank = self.lost.pop()
            self.usable.add(rank)
            schedule.set_usable(*rank, usable=True)
        elif not self.working and self.asked and not schedule.ready() and not schedule.wants_rows():
            assert schedule.at_end, "the loop waits, nothing is at work, and no row may be begun"
            assert schedule.left == 0, f"{schedule.left} rows are left and nothing is at work"
            self.left_out.update(schedule.take().gone)
            return False
        return True

    def begin(self, calls: Sequence[StageCall]) -> None:
        at_work = [row for call in self.working for row in call.rows]
        for call in calls:
            stage = self.stages[call.stage]
            assert call.rows and (stage.many or len(call.rows) == 1)
            assert (stage.pool, call.rank) in self.usable, "a lost data rank gets rows"
            at_work += call.rows
            self.working.append(call)
            load = [one for one in self.working if (one.stage, one.rank) == (call.stage, call.rank)]
            assert len(load) <= stage.calls
        assert len(set(at_work)) == len(at_work), "a row is at work twice"

    def end(self, call: StageCall) -> None:
        schedule, draw = self.schedule, self.draw
        pool, event = self.stages[call.stage].pool, draw.random()
        schedule.over(call.stage, call.rank)
        if event < self.faults:
            self.redone.update(call.rows)
            if (
                sum(of_pool == pool for of_pool, _ in self.usable) > 1
                and draw.random() < 0.5
                and (pool, call.rank) in self.usable
            ):
                self.usable.discard((pool, call.rank))
                self.lost.append((pool, call.rank))
                schedule.set_usable(pool, call.rank, usable=False)
            schedule.again(call.rows, draw.choice([0, call.stage]))
        elif event < 1.5 * self.faults:
            self.redone.update(call.rows)
            if not schedule.failed(call, draw.choice([None, 0])):
                (row,) = call.rows  # a row fails for good in its own call only
                schedule.skip(row)
        else:
            is_last = call.stage + 1 == len(self.stages)
            schedule.made(call, [row for row in call.rows if is_last and draw.random() < self.refuses])
        finished = list(schedule._finished)
        if finished and draw.random() < self.faults:  # its worker had the only copy
            row = draw.choice(finished)
            self.redone.add(row)
            schedule.again([row])

    def take(self) -> None:
        made = self.schedule.take()
        assert made.rows, "no batch is empty"
        if self.rules.rows is not None:
            size = self.rules.rows
            assert len(made.rows) == size or (self.schedule.at_end and not self.schedule.left and len(made.rows) < size)
        assert all(
            0 <= begun <= ended <= self.schedule.version for begun, ended in zip(made.begun, made.ended, strict=True)
        )
        self.got += made.rows
        self.left_out.update(made.gone)
        self.lags += [
            self.schedule.version - begun
            for begun, row in zip(made.begun, made.rows, strict=True)
            if row not in self.redone
        ]
        self.asked = False
        for _ in range(self.versions):
            self.schedule.publish(self.schedule.version + 1)

    def check(self) -> None:
        rules, counts = self.rules, self.schedule.stats
        wanted = [row for row in self.rows if row not in self.known]
        assert sorted([*self.got, *self.left_out]) == wanted, "each row is delivered once, or left out and counted"
        assert counts.dropped + counts.skipped + counts.refused == len(self.left_out)
        assert rules.stale == "drop" or not counts.dropped
        if rules.order == "source":
            assert self.got == sorted(self.got)
        worst = max(self.lags, default=0)
        if rules.max_lag is not None and (rules.stale == "drop" or rules.order == "source"):
            bound = rules.max_lag if rules.stale == "drop" else rules.max_lag * max(1, self.versions)
            assert worst <= bound, f"a row has lag {worst}, {rules}"


@pytest.mark.parametrize("part", range(4))
def test_random_runs_keep_the_laws(part: int) -> None:
    for seed in range(part, EXAMPLES, 4):
        try:
            Run(seed).run()
        except AssertionError as error:
            raise AssertionError(f"run {seed}") from error


def test_rows_at_work_with_their_costs_are_few_numbers() -> None:
    """A data rank with the least work comes first, later stages too, and a call has the share of a batch at most."""
    schedule = Schedule(Rules(rows=8, ahead=100), [4, 2], [StageRule(0), StageRule(1, 2, many=False)])
    schedule.read(20)
    first = schedule.next_calls()
    assert first == [StageCall(0, rank, (2 * rank, 2 * rank + 1)) for rank in range(4)]
    assert schedule.next_calls() == []
    schedule.over(0, 2)
    schedule.made(first[2])
    assert schedule.next_calls() == [StageCall(1, 0, (4,)), StageCall(1, 1, (5,))]
    assert schedule.next_calls() == [StageCall(0, 2, (8, 9))]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 0}, "rows=0 is no whole number at or above 1"),
        ({"ahead": -1}, "ahead=-1 is no whole number at or above 0"),
        ({"ahead": True}, "ahead=True is no"),
        ({"max_lag": 1.5}, "max_lag=1.5 is no"),
        ({"order": "random"}, "none of 'source', 'arrival'"),
        ({"stale": "wait"}, "none of 'use', 'drop'"),
        ({"on_error": "ignore"}, "none of 'raise', 'skip'"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Rules(**options)
