"""The figures of calls: sums for all that are kept, by rank for the latest ones, in little memory."""

from __future__ import annotations

import gc
import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_remote import on
from twinkle_remote.conformance.subjects.echo import Echo
from twinkle_remote.protocol import Failure, Outcome
from twinkle_remote.sessions.current import stats as stats_of_session
from twinkle_remote.sessions.telemetry.stats import CallRecord, CallRecords, Stats

SECONDS = st.floats(0.0, 100.0)


@st.composite
def answers(draw: st.DrawFn) -> list[Outcome]:
    ranks = draw(st.lists(st.integers(0, 2000), unique=True, max_size=5))
    columns = st.dictionaries(st.sampled_from(["ids", "wide", "None", "0"]), st.integers(1, 1 << 40))
    found = draw(st.lists(st.none() | columns, min_size=len(ranks), max_size=len(ranks)))
    return [
        Outcome(
            rank,
            fetched=sum((own or {}).values()) + draw(st.integers(0, 1 << 50)),
            fetched_columns=own,
            produced=draw(st.integers(0, 1 << 50)),
            started=1000.0 + draw(SECONDS),
            seconds=draw(SECONDS),
            fetch_seconds=draw(SECONDS),
            failure=Failure("a", "here", "KeyError", "none") if draw(st.booleans()) else None,
        )
        for rank, own in zip(ranks, found, strict=True)
    ]


@given(given_=answers(), cut=st.integers(0, 5), forgotten=st.booleans())
def test_sums_are_those_of_the_answers(given_: list[Outcome], cut: int, forgotten: bool) -> None:
    record = CallRecord("A.b", "a", len(given_), submitted=1000.0)
    for together in (given_[:cut], given_[cut:]):
        if together:
            record.add(together)
    assert record.worker_fetched == {one.rank: one.fetched for one in given_}
    assert record.produced == {one.rank: one.produced for one in given_}
    assert record.started == {one.rank: one.started for one in given_}
    assert record.seconds == {one.rank: one.seconds for one in given_}
    assert record.fetch_seconds == {one.rank: one.fetch_seconds for one in given_}
    for one in given_:
        by_column = dict(record.worker_fetched_by_column[one.rank])
        rest = by_column.pop(None, 0)
        assert by_column == (one.fetched_columns or {}) and sum(by_column.values()) + rest == one.fetched
    if forgotten:
        record.keep_sums_only()
        assert not record.started and not record.produced and not record.worker_fetched_by_column
    assert record.answered == len(given_) and list(record.failed) == [one.rank for one in given_ if one.failure]
    assert record.bytes_fetched == sum(one.fetched for one in given_) == sum(record.fetched_by_column.values())
    for name in {name for one in given_ for name in one.fetched_columns or {}}:
        assert record.fetched_by_column[name] == sum((one.fetched_columns or {}).get(name, 0) for one in given_)
    assert record.bytes_produced == sum(one.produced for one in given_)
    assert record.run_seconds == max([one.seconds for one in given_], default=0.0)
    waits = [one.started - one.fetch_seconds - 1000.0 for one in given_]
    assert record.queue_seconds == pytest.approx(max([0.0, *waits]))
    ends = [one.started + one.seconds for one in given_]
    assert record.skew_seconds == (max(ends) - min(ends) if ends else 0.0)


def test_the_latest_calls_keep_figures_by_rank() -> None:
    stats = Stats(limit=5, answers=10)
    for number in range(8):
        record = stats.open(f"A.{number}", "a", 4, 1.0)
        for rank in range(4):
            record.add([Outcome(rank, produced=1)])
    kept = stats.records()
    assert [record.method for record in kept] == ["A.3", "A.4", "A.5", "A.6", "A.7"]
    assert [len(record.produced) for record in kept] == [0, 0, 0, 4, 4]
    assert [record.bytes_produced for record in kept] == [4] * 5
    wide = stats.open("A.wide", "a", 100, 1.0)
    wide.add([Outcome(7, produced=1)])
    assert wide.produced == {7: 1}, "the latest call keeps them, however many its workers are"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [8, 64])
def test_the_figures_of_ten_thousand_calls_take_less_than_ten_megabytes(workers: int) -> None:
    stats = Stats(limit=1_000, answers=1_638)  # a tenth of what is kept by default
    outcomes = [Outcome(rank, fetched=1000, produced=2000, started=1.5, seconds=2.5) for rank in range(workers)]
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(1_000):
            record = stats.open("A.b", "a", workers, 1.0)
            record.add(outcomes)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 1e6, grown


def test_records_print_a_row_for_each_method(threads: None) -> None:
    echo = on("two").create(Echo)
    for value in (1, 2):
        assert echo.rows([value, value]) == [value, value]
    found = stats_of_session()
    assert [record.method for record in found[-2:]] == ["Echo.rows", "Echo.rows"]
    head, *rows, _ = str(found).splitlines()
    assert head.split()[:4] == ["method", "group", "calls", "failed"]
    told = {row.split()[0]: row.split()[1:4] for row in rows}
    assert told["Echo.rows"] == ["two[2]", "2", "0"] and told["Echo.__init__"] == ["two[2]", "1", "0"]
    assert max(map(len, rows)) <= len(head)


def test_no_records_print_a_head() -> None:
    assert str(CallRecords()).startswith("method")


@given(
    given_=st.lists(st.tuples(st.sampled_from(["own", "a", "b"]), st.integers(1, 4)), max_size=40),
    told=st.lists(st.integers(0, 40), max_size=4),
    limit=st.integers(1, 12),
    answers_=st.integers(1, 20),
)
def test_records_of_workers_are_the_latest_ones_by_the_same_limits(
    given_: list[tuple[str, int]], told: list[int], limit: int, answers_: int
) -> None:
    by_process = {name: Stats(limit, answers_) for name in ("own", "a", "b")}
    driver = by_process["own"]
    for at, (name, workers) in enumerate(given_):
        if at in told:
            driver.take({key: by_process[key].own(driver.since) for key in ("a", "b")})
        by_process[name].open(f"A.m{at}", "a", workers, submitted=float(at + 1))
    driver.take({"a": by_process["a"].own(driver.since)})
    driver.take({"b": by_process["b"].own(driver.since)})  # "a" tells nothing now
    shown = [f"A.m{at}" for at in range(len(given_))][-limit:]
    assert [record.method for record in driver.records()] == shown
    own = [f"A.m{at}" for at, (name, _) in enumerate(given_) if name == "own"]
    assert [record.method for record in driver.own()] == own[-limit:]
    kept = [record for records in driver._of_workers.values() for record in records]
    assert len(kept) <= limit
    assert sum(record.workers for record in kept if record._answers is not None) <= answers_


def test_records_travel_between_processes() -> None:
    record = CallRecord("A.b", "a", 2, submitted=1000.0)
    record.add([Outcome(0, started=1001.0, seconds=2.0, produced=7), Outcome(1, started=1002.0, seconds=2.0)])
    assert pickle.loads(pickle.dumps(record)).seconds == record.seconds == {0: 2.0, 1: 2.0}
    assert pickle.loads(pickle.dumps(record)).skew_seconds == 1.0
    empty = CallRecord("A.b", "a", 2)
    assert pickle.loads(pickle.dumps(empty)).skew_seconds == 0.0
