"""Laws of the bound of lag: what "wait", "redo" and "drop" promise, at any number of versions a batch."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.remote.streams.schedule.random_run import MANY, Shape, made, rules, seeds, shapes, sizes

from twinkle_remote.streams.options import StreamRules

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


def whole_batches_of(rows: set[int], counts: list[int]) -> set[int]:
    """All rows of the source's batches of which there is a row."""
    starts = [sum(counts[:index]) for index in range(len(counts))]
    batches = [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
    return {row for batch in batches if rows.intersection(batch) for row in batch}


def whole_batches(ahead: int, max_lag: int, chunk: int, at_once: int) -> StreamRules:
    return StreamRules(
        rows=None, ahead=ahead, order="arrival", max_lag=max_lag, stale="wait", chunk=chunk, at_once=at_once
    )


@MANY
@given(waits, long, shapes, seeds, st.lists(st.integers(0, 4), min_size=1, max_size=4), st.sampled_from([0.0, 0.1]))
# Two batches were begun under one version; the rest of a batch that all others wait for was not admitted.
@example(whole_batches(10, 3, 1, 2), [4, 4, 4, 7, 7], ([1], [0]), 2923, [3], 0.0)
@example(whole_batches(6, 2, 3, 3), [8, 4, 4, 9, 6], ([2], [0, 0]), 3617591002, [2], 0.0)
@example(whole_batches(12, 4, 2, 2), [1, 5, 5, 6, 1, 4, 9, 5, 5], ([3, 2], [0, 1]), 2650061080, [4], 0.1)
@pytest.mark.slow
def test_the_bound_of_wait_is_hard_at_any_number_of_versions_a_batch(
    rule: StreamRules, counts: list[int], shape: Shape, seed: int, a_batch: list[int], faults: float
) -> None:
    run = made(rule, counts, shape, seed, a_batch=tuple(a_batch), faults=faults)
    assert rule.max_lag is not None
    assert max(run.lags, default=0) <= rule.max_lag
    assert sorted(run.rows + run.aside) == list(range(sum(counts)))
    if not faults:
        assert max(run.begun_again.values()) <= 2, "a row is made again once at most"
    if not faults and len(a_batch) == 1:
        again = {row for row, begins in run.begun_again.items() if begins > 1}
        begun = run.begun_first if rule.rows else whole_batches_of(run.begun_first, counts)
        assert again <= begun, "what is begun when the number of versions is known is not overtaken"


@MANY
@given(waits, long, shapes, seeds, st.lists(st.integers(0, 2), min_size=1, max_size=3), st.sampled_from([0.02, 0.3]))
@pytest.mark.slow
def test_only_versions_from_outside_of_the_loop_put_rows_beyond_the_bound(
    rule: StreamRules, counts: list[int], shape: Shape, seed: int, a_batch: list[int], outside: float
) -> None:
    """Where versions come while the loop waits, faster than rows are made, waiting for the bound would never end."""
    run = made(rule, counts, shape, seed, a_batch=tuple(a_batch), outside=outside)
    assert sorted(run.rows) == list(range(sum(counts)))
    assert max(run.begun_again.values()) <= 2
    assert all(run.begun_again[row] == 2 for row in run.beyond), "a row is used beyond it when it was made again once"
    assert len(run.beyond) == run.schedule.counts.beyond
    assert run.from_outside or not run.beyond


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
