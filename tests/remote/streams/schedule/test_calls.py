"""Laws of calls: no row waits while its stage has room, and how many rows a call takes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.streams.schedule.random_run import MANY, RandomRun, Shape, rules, seeds, shapes, sizes

from twinkle_remote.streams.options import StreamRules
from twinkle_remote.streams.schedule.chunk_table import WAITING
from twinkle_remote.streams.schedule.intake import Intake
from twinkle_remote.streams.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.streams.schedule.decisions import Assignment, StageCall


class WatchedRun(RandomRun):
    """Checks each call that is begun, and what waits when none is."""

    @property
    def batch(self) -> int:
        """Rows of a batch of the loop, as far as they are known."""
        read = self.sizes[: len(self.sizes) - len(self.unread)]
        return self.rules.rows or max([1, *read])

    def has_room(self, stage: int) -> bool:
        return self.schedule.pools[self.stages[stage]].least_busy(self.takes[stage].lane) > 0

    @property
    def takes(self) -> Sequence[Intake]:
        return self.intakes or [Intake(calls=self.rules.at_once or 1)] * len(self.stages)

    def begin_all(self, works: Sequence[StageCall]) -> None:
        stage = works[0].stage
        most = self.takes[stage].most_rows(self.batch, self.pools[self.stages[stage]])
        assert {work.stage for work in works} == {stage}
        assert len({work.rank for work in works}) == len(works), "one call for each of the least busy ranks"
        if self.rules.chunk is None:
            given = [work.rows for work in works if not any(map(self.was_hurt, work.parts))]
            assert max(given, default=0) <= most
            assert max(given, default=0) - min(given, default=0) <= 1, "what waits is divided evenly"
            assert all(len(work.parts) == 1 for work in works if any(map(self.failed_once, work.parts)))
        else:
            assert all(len(work.parts) == 1 and work.rows <= self.rules.chunk for work in works)
        super().begin_all(works)

    def failed_once(self, part: Assignment) -> bool:
        return self.schedule.chunks.errors[part.chunk] > 0

    def was_hurt(self, part: Assignment) -> bool:
        return self.failed_once(part) or self.schedule.chunks.losses[part.chunk] > 1

    def nothing_waits(self) -> None:
        chunks, bounded = self.schedule.chunks, self.rules.max_lag is not None
        waiting = {chunks.stage[chunk] for chunk in chunks.live() if chunks.state[chunk] == WAITING}
        assert not [stage for stage in waiting if self.has_room(stage) and (stage or not bounded)]
        if not bounded and self.has_room(0):
            rows = sum(chunks.count[chunk] for chunk in chunks.live())
            ahead = self.rules.ahead + (self.batch if self.asked else 0)
            assert rows >= min(self.schedule.left, ahead), "rows were read and not begun"


def intakes_of(shape: Shape, seed: int) -> list[Intake]:
    choose = Random(seed)
    calls = [choose.randint(1, 3), choose.randint(1, 3)]
    lanes = [choose.randint(0, 1) for _ in shape[1]]
    return [Intake(lane, calls[lane], choose.random() < 0.6) for lane in lanes]


@MANY
@given(rules, sizes, shapes, seeds, st.sampled_from([0.0, 0.05]), st.booleans())
@pytest.mark.slow
def test_no_row_waits_for_room_and_calls_have_what_their_stage_takes(
    rule: StreamRules, counts: list[int], shape: Shape, seed: int, faults: float, lanes: bool
) -> None:
    intakes = intakes_of(shape, seed) if lanes else None
    run = WatchedRun(rule, counts, *shape, seed, faults=faults, intakes=intakes)
    assert run.run()
    assert sorted(run.rows + run.aside) == list(range(sum(counts)))


def begun(schedule: Scheduler) -> list[tuple[int, int, int]]:
    """Stage, data rank and rows of all calls that can be begun."""
    found = []
    while works := schedule.next_works():
        found += [(work.stage, work.rank, work.rows) for work in works]
    return found


@pytest.mark.parametrize(
    ("ranks", "waiting", "sizes"),
    [(1, 24, [8]), (2, 24, [4, 4]), (3, 24, [3, 3, 3]), (2, 3, [1, 2]), (16, 24, [1] * 16), (4, 2, [1, 1])],
)
def test_a_call_takes_what_waits_up_to_the_share_of_a_batch(ranks: int, waiting: int, sizes: list[int]) -> None:
    schedule = Scheduler(StreamRules(rows=8, ahead=100), [ranks], [0])
    schedule.read(waiting)
    assert sorted(rows for _, _, rows in begun(schedule)) == sizes


def test_async_calls_take_one_row_beside_the_others_of_their_workers() -> None:
    takes = [Intake(1, 3, is_shared_out=False), Intake()]
    schedule = Scheduler(StreamRules(rows=4, ahead=100), [1], [0, 0], intakes=takes)
    schedule.read(8)
    assert begun(schedule) == [(0, 0, 1)] * 3
    schedule.finished(0)
    schedule.finished(1)
    assert begun(schedule) == [(1, 0, 2), (0, 0, 1), (0, 0, 1)], "the later stage has a lane of its own"
    schedule.finished(2)
    assert begun(schedule) == [(0, 0, 1)], "and is at work"


def test_what_failed_together_is_made_apart_and_what_was_lost_once_is_not() -> None:
    schedule = Scheduler(StreamRules(rows=4, ahead=4, at_once=4), [1], [0])
    schedule.read(4)
    assert begun(schedule) == [(0, 0, 4)]
    for chunk in range(4):
        schedule.lost(chunk)
    assert begun(schedule) == [(0, 0, 4)], "a worker may die of something else"
    for chunk in range(4):
        schedule.failed(chunk)
    assert begun(schedule) == [(0, 0, 1)] * 4


def test_a_rank_has_room_again_with_the_last_row_of_a_call() -> None:
    schedule = Scheduler(StreamRules(rows=2, ahead=6), [1], [0])
    schedule.read(6)
    assert begun(schedule) == [(0, 0, 2)]
    schedule.finished(0)
    assert begun(schedule) == []
    schedule.finished(1)
    assert begun(schedule) == [(0, 0, 2)]
