"""The metrics of calls: sums, and by rank; the latest calls are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_remote.protocol import Failure, Outcome
from twinkle_remote.sessions.telemetry import CallRecord, Stats

SECONDS = st.floats(0.0, 100.0)


@st.composite
def answers(draw: st.DrawFn) -> list[Outcome]:
    ranks = draw(st.lists(st.integers(0, 2000), unique=True, max_size=5))
    return [
        Outcome(
            rank,
            fetched=draw(st.integers(0, 1 << 50)),
            produced=draw(st.integers(0, 1 << 50)),
            started=1000.0 + draw(SECONDS),
            seconds=draw(SECONDS),
            fetch_seconds=draw(SECONDS),
            failure=Failure("a", "here", "KeyError", "none") if draw(st.booleans()) else None,
        )
        for rank in ranks
    ]


@given(given_=answers())
def test_sums_are_those_of_the_answers(given_: list[Outcome]) -> None:
    record = CallRecord("A.b", "a", len(given_), submitted=1000.0)
    for outcome in given_:
        record.add(outcome)
    assert record.worker_fetched == {one.rank: one.fetched for one in given_}
    assert record.produced == {one.rank: one.produced for one in given_}
    assert record.failed == [one.rank for one in given_ if one.failure]
    assert record.bytes_fetched == sum(one.fetched for one in given_)
    assert record.run_seconds == max([one.seconds for one in given_], default=0.0)
    waits = [one.started - one.fetch_seconds - 1000.0 for one in given_]
    assert record.queue_seconds == pytest.approx(max([0.0, *waits]))
    ends = [one.started + one.seconds for one in given_]
    assert record.skew_seconds == (max(ends) - min(ends) if ends else 0.0)


def test_the_latest_calls_are_kept_by_their_number_and_their_ranks() -> None:
    stats = Stats(limit=5, ranks=14)
    for number in range(8):
        stats.open(f"A.{number}", "a", 2, 1.0).add(Outcome(0, produced=1))
    kept = stats.records()
    assert [record.method for record in kept] == ["A.3", "A.4", "A.5", "A.6", "A.7"]
    assert [record.produced for record in kept] == [{0: 1}] * 5
    stats.open("A.wide", "a", 9, 1.0)
    assert [record.method for record in stats.records()] == ["A.6", "A.7", "A.wide"]
    widest = stats.open("A.widest", "a", 100, 1.0)
    assert stats.records() == [widest], "the latest call is kept, however many its workers are"
