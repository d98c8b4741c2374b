"""Checks: streams of rows through stages."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from tests.conformance.harness import checks_of, needs
from tests.conformance.subjects.echo import Stages
from tests.conformance.subjects.layouts import EIGHT, FOUR, TWO

from twinkle_remote import get, stats, stream

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


CHECKS = checks_of(globals())
