"""Laws of the schedule over random interleavings of its events."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.remote.streams.schedule.random_run import MANY, RandomRun, made, rules, seeds, shapes, sizes

from twinkle_remote.streams.options import StreamRules
from twinkle_remote.streams.schedule.scheduler import LATE, Scheduler

if TYPE_CHECKING:
    from twinkle_remote.streams.schedule.decisions import StageCall


def all_of(schedule: Scheduler) -> list[StageCall]:
    """All calls that can be begun."""
    works: list[StageCall] = []
    while begun := schedule.next_works():
        works += begun
    return works


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
        return sum(work.rows for work in all_of(schedule))

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
    schedule = Scheduler(StreamRules(rows=8, ahead=8, at_once=2, chunk=1), [3], [0])
    schedule.read(16)
    works = all_of(schedule)
    assert [work.rank for work in works] == [0, 1, 2, 0, 1, 2]
    schedule.finished(works[4].number)
    (work,) = all_of(schedule)
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
    with pytest.raises(TypeError, match=r"ahead .*1\.5"):
        StreamRules(ahead=1.5)  # type: ignore[arg-type]  # on purpose


def test_deaths_leave_no_row_out_and_deadlines_do() -> None:
    schedule = Scheduler(StreamRules(rows=1, ahead=2), [1], [0])
    schedule.read(2)
    schedule.ask()
    for _ in range(300):
        for work in all_of(schedule):
            for part in work.parts:
                assert schedule.lost(part.chunk)
    assert schedule.counts.set_aside == 0
    for attempt in range(LATE):
        work = all_of(schedule)[0]
        assert work.spans() == [(0, 1)]
        assert bool(schedule.lost(work.number, late=True)) == (attempt + 1 < LATE)
    assert schedule.counts.set_aside == 1
