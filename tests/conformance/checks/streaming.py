"""Checks: streams of rows through stages."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conformance.harness import needs, raises
from tests.conformance.subjects.echo import Echo
from tests.conformance.subjects.layouts import EIGHT, FOUR, TWO
from tests.conformance.subjects.streamed import Stages

from twinkle_remote import get, stats, stream, submit
from twinkle_remote.errors import CollectError, RemoteCallError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.conformance.harness import Harness

SOURCE = [list(range(8)), list(range(8, 11)), list(range(11, 20))]
ROWS = list(range(20))


def _flat(batches: Iterable[Any]) -> list[int]:
    return [row for batch in batches for row in get(batch)]


def streaming_without_ahead_makes_the_calls_of_the_loop(harness: Harness) -> None:
    """With ahead=0 each rank is given the same rows in the same calls as by a hand-written loop."""
    for mesh in EIGHT.values():
        by_hand, streamed = harness.build(Stages, 8, mesh=mesh), harness.build(Stages, 8, mesh=mesh)
        expected = [get(by_hand.tenfold(batch)) for batch in SOURCE]
        with stream(SOURCE, streamed.tenfold) as batches:
            assert [get(batch) for batch in batches] == expected
        assert streamed.calls() == by_hand.calls()


def streaming_without_ahead_gives_batches_of_any_size(harness: Harness) -> None:
    """With rows=n each batch is one whole call of so many rows, and the last one is short."""
    by_hand, streamed = harness.build(Stages, 4, mesh=FOUR["dp4"]), harness.build(Stages, 4, mesh=FOUR["dp4"])
    expected = [get(by_hand.tenfold(ROWS[at : at + 6])) for at in range(0, 20, 6)]
    with stream(SOURCE, streamed.tenfold, rows=6) as batches:
        assert [get(batch) for batch in batches] == expected
    assert streamed.calls() == by_hand.calls()


def streaming_ahead_delivers_each_row_once(harness: Harness) -> None:
    """On every mesh, in both orders, for `def` and `async def` stages, each row is made and delivered once."""
    for mesh in (*FOUR.values(), None):
        stages = harness.build(Stages, 4, mesh=mesh)
        for stage in (stages.tenfold, stages.later):
            with stream(SOURCE, stage, rows=6, ahead=9) as batches:
                assert _flat(batches) == [10 * row for row in ROWS]
            with stream(SOURCE, stage, rows=6, ahead=9, order="arrival") as batches:
                assert sorted(_flat(batches)) == [10 * row for row in ROWS]
        with stream(SOURCE, stages.tenfold, ahead=9) as batches:
            assert [get(batch) for batch in batches] == [[10 * row for row in batch] for batch in SOURCE]


def streaming_goes_through_stages_one_after_the_other(harness: Harness) -> None:
    """Rows go from the workers of one stage to those of the next, then through a plain function."""
    first, second = harness.build(Stages, 4, mesh=FOUR["dp2 tp2"]), harness.build(Stages, 2, mesh=TWO)
    with stream(SOURCE, first.tenfold, second.tenfold, rows=6, ahead=9) as batches:
        assert _flat(batches) == [100 * row for row in ROWS]
    with stream(SOURCE, first.tenfold, lambda rows: [row + 1 for row in rows], rows=6, ahead=9) as batches:
        assert _flat(batches) == [10 * row + 1 for row in ROWS]


def streaming_takes_lazy_batches(harness: Harness) -> None:
    """Batches of the source that are results of calls are cut and joined where they are."""
    echo, stages = harness.build(Echo, 4, mesh=FOUR["dp4"]), harness.build(Stages, 2, mesh=TWO)
    source = [submit(echo.rows, batch) for batch in SOURCE]
    for rows, ahead in ((None, 0), (6, 0), (6, 9), (3, 9)):
        with stream(source, stages.tenfold, rows=rows, ahead=ahead) as batches:
            assert _flat(batches) == [10 * row for row in ROWS], (rows, ahead)


@needs(apart=True)
def streaming_moves_no_rows_through_the_driver(harness: Harness) -> None:
    """A batch of many calls goes from worker to worker, and all peers of a data rank get the same rows."""
    first, second = harness.build(Stages, 4, mesh=FOUR["dp2 tp2"]), harness.build(Stages, 2, mesh=TWO)
    before = len(stats())
    with stream(SOURCE, first.tenfold, rows=6, ahead=9) as batches:
        made = [second.tenfold(batch) for batch in batches]
    assert sum(record.driver_fetched for record in stats()[before:]) == 0
    assert _flat(made) == [100 * row for row in ROWS]
    given = dict(harness.each(4, first.calls()))
    assert given[0] == given[1]
    assert given[2] == given[3]
    assert sorted(row for rank in (0, 2) for rows in given[rank] for row in rows) == ROWS


@needs(apart=True, served="a chunk is a call of all ranks")
def streaming_by_arrival_waits_for_no_long_row(harness: Harness) -> None:
    """A long row delays only itself: the others are delivered while it is at work."""
    gate = Path(harness.folder) / "stream-gate"
    gate.unlink(missing_ok=True)
    stages = harness.build(Stages, 4, str(gate), mesh=FOUR["dp4"])
    seen: list[int] = []
    with stream(SOURCE, stages.gated, rows=4, ahead=9, order="arrival") as batches:
        for batch in batches:
            seen += get(batch)
            if len(seen) == 16:
                assert 0 not in seen
                gate.touch()
    assert sorted(seen) == ROWS


@needs(apart=True, served="a chunk is a call of all ranks")
def streaming_gives_late_rows_to_other_workers(harness: Harness) -> None:
    """The rows of a call that is past its deadline are made by another data rank."""
    gate = Path(harness.folder) / "stream-late"
    gate.unlink(missing_ok=True)
    stages = harness.build(Stages, 4, str(gate), mesh=FOUR["dp4"])
    with stream(SOURCE, stages.late, rows=4, ahead=9) as batches:
        assert _flat(batches) == ROWS


def streaming_tells_versions_and_lags(harness: Harness) -> None:
    """Each row knows the versions of its begin and its end; in source order the lag has its bound."""
    stages = harness.build(Stages, 4, mesh=FOUR["dp4"])
    lags: list[int] = []
    with stream(SOURCE, stages.tenfold, rows=4, ahead=20, max_lag=1) as batches:
        for number, batch in enumerate(batches):
            info = batches.info
            assert info is not None
            assert sorted(10 * index for index in info.indices) == sorted(get(batch))
            assert [number - begun for begun in info.begun] == list(info.lag)
            assert all(begun <= ended <= number for begun, ended in zip(info.begun, info.ended, strict=True))
            lags += info.lag
            assert batches.publish() == number + 1
    assert max(lags) <= 1
    assert batches.stats().lag.total() == 20


def streaming_resumes_where_it_was(harness: Harness) -> None:
    """A state, taken after any batch and read back as JSON, gives each row once on another number of ranks."""
    first, second = harness.build(Stages, 4, mesh=FOUR["dp4"]), harness.build(Stages, 2, mesh=TWO)
    for ahead in (0, 9):
        for order in ("source", "arrival"):
            for taken in range(4):
                with stream(SOURCE, first.tenfold, rows=6, ahead=ahead, order=order) as batches:
                    before = _flat(islice(batches, taken))
                    state = json.loads(json.dumps(batches.state_dict()))
                with stream(SOURCE, second.tenfold, rows=6, ahead=ahead, order=order) as batches:
                    batches.load_state_dict(state)
                    after = _flat(batches)
                assert sorted(before + after) == [10 * row for row in ROWS], (ahead, order, taken)


@needs(apart=True)
def streaming_skips_rows_that_fail(harness: Harness) -> None:
    """A row for which a stage raises twice ends the stream, or is left out and counted; others of its call are not."""
    stages = harness.build(Stages, 4, mesh=FOUR["dp2 tp2"])
    with raises(ValueError, "thirteen is poison"), stream(SOURCE, stages.poisoned, rows=4, ahead=9) as batches:
        _flat(batches)
    with stream(SOURCE, stages.poisoned, rows=4, ahead=9, on_error="skip") as batches:
        assert _flat(batches) == [row for row in ROWS if row != 13]
    assert batches.stats().skipped == 1


def streaming_raises_what_fails_for_all(harness: Harness) -> None:
    """A stage that fails for every row ends the stream with its error; so does a stage that returns other rows."""
    stages = harness.build(Stages, 4, mesh=FOUR["dp4"])
    for ahead in (0, 9):
        with (
            raises(ValueError, "nothing works") as caught,
            stream(SOURCE, stages.broken, rows=6, ahead=ahead) as batches,
        ):
            _flat(batches)
        assert harness.in_process or isinstance(caught.error, RemoteCallError)
        with (
            raises(CollectError, "Stages.doubled returned ", " rows for ", "rows"),
            stream(SOURCE, stages.doubled, rows=6, ahead=ahead) as batches,
        ):
            _flat(batches)


def streaming_fills_batches_with_rows_that_are_kept(harness: Harness) -> None:
    """`keep` gets the value of one row, in every mode, and other rows take the places of those that it refuses."""
    stages = harness.build(Stages, 4, mesh=FOUR["dp2 tp2"])
    for ahead in (0, 9):
        with stream(SOURCE, stages.tenfold, rows=4, ahead=ahead, keep=lambda row: row % 20 == 0) as batches:
            assert [get(batch) for batch in batches] == [[0, 20, 40, 60], [80, 100, 120, 140], [160, 180]]
        assert batches.stats().refused == 10


def streaming_goes_through_epochs(harness: Harness) -> None:
    """An epoch ends with a short batch; the next `for` loop is the next epoch."""
    stages = harness.build(Stages, 4, mesh=FOUR["dp4"])
    for ahead in (0, 9):
        with stream(SOURCE, stages.tenfold, rows=6, ahead=ahead) as batches:
            for epoch in range(3):
                sizes = []
                for batch in batches:
                    sizes.append(len(get(batch)))
                    assert batches.info is not None
                    assert batches.info.epoch == epoch
                assert sizes == [6, 6, 6, 2]


CHECKS = (
    streaming_without_ahead_makes_the_calls_of_the_loop,
    streaming_without_ahead_gives_batches_of_any_size,
    streaming_ahead_delivers_each_row_once,
    streaming_goes_through_stages_one_after_the_other,
    streaming_takes_lazy_batches,
    streaming_moves_no_rows_through_the_driver,
    streaming_by_arrival_waits_for_no_long_row,
    streaming_gives_late_rows_to_other_workers,
    streaming_tells_versions_and_lags,
    streaming_resumes_where_it_was,
    streaming_skips_rows_that_fail,
    streaming_raises_what_fails_for_all,
    streaming_fills_batches_with_rows_that_are_kept,
    streaming_goes_through_epochs,
)
