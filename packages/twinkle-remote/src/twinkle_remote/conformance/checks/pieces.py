"""Checks: the pieces of a result in the order of their completion, and the items of generators."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.generate import AHEAD
from twinkle_remote.call.lazy_values.as_completed import as_completed
from twinkle_remote.call.lazy_values.get import get
from twinkle_remote.call.submit import submit
from twinkle_remote.conformance.harness import needs, raises
from twinkle_remote.conformance.subjects.components import Counter
from twinkle_remote.conformance.subjects.coroutines import Maker, Pieces
from twinkle_remote.conformance.subjects.echo import Echo
from twinkle_remote.conformance.subjects.layouts import FOUR, TWO
from twinkle_remote.errors import CallTimeoutError, CollectError, DispatchError

if TYPE_CHECKING:
    from twinkle_remote.conformance.harness import Harness

_PATIENCE = 20.0


def _gate(harness: Harness) -> str:
    return f"{harness.folder}/gate-{time.monotonic_ns()}"


@needs(apart=True)
def pieces_come_when_they_are_done(harness: Harness) -> None:
    """Each data rank's piece comes when that data rank is done, with its rows; a failed one comes too."""
    pieces = harness.build(Pieces, 4, mesh=FOUR["dp2 tp2"])
    gate = _gate(harness)
    coming = iter(as_completed(submit(pieces.after, [1, 2, 3, 4], gate)))
    for data_rank, rows in ((1, [3, 4]), (0, [1, 2])):
        Path(f"{gate}-{data_rank}").touch()
        piece = next(coming)
        assert (piece.data_rank, get(piece)) == (data_rank, rows)
    assert next(coming, None) is None
    gate = _gate(harness)
    coming = iter(as_completed(submit(pieces.after, [13, 2, 3, 4], gate)))
    Path(f"{gate}-0").touch()
    failed = next(coming)
    assert failed.data_rank == 0
    with raises(KeyError, "Pieces.after failed on", "dp=0"):
        get(failed)
    Path(f"{gate}-1").touch()
    assert get(next(coming)) == [3, 4]


def pieces_make_the_whole(harness: Harness) -> None:
    """The pieces are the result, with `for` and with `async for`; each is handed to other calls."""
    echo, sink = harness.build(Echo, 4, mesh=FOUR["dp4"]), harness.build(Echo, 2, mesh=TWO)
    rows = list(range(7))

    async def awaited() -> dict[int, Any]:
        return {piece.data_rank: await piece async for piece in as_completed(submit(echo.rows, rows))}

    for found in (
        {piece.data_rank: get(piece) for piece in as_completed(submit(echo.rows, rows))},
        {piece.data_rank: get(sink.rows(piece)) for piece in as_completed(submit(echo.rows, rows))},
        asyncio.run(awaited()),
    ):
        assert sorted(found) == list(range(harness.shares(FOUR["dp4"])))
        assert [row for index in sorted(found) for row in found[index]] == rows


def generators_send_their_items(harness: Harness) -> None:
    """Every item once, in order on each data rank, and knowing it; plain and async generators alike."""
    maker = harness.build(Maker, 4, mesh=FOUR["dp2 tp2"])
    rows = list(range(9))
    half = 5 if harness.shares(FOUR["dp2 tp2"]) == 2 else 9

    async def awaited() -> list[tuple[int, int]]:
        return [(item.data_rank, await item) async for item in submit(maker.each_later, rows)]

    for found in (
        [(item.data_rank, get(item)) for item in submit(maker.each, rows)],
        [(item.data_rank, get(item)) for item in submit(maker.each_later, rows)],
        asyncio.run(awaited()),
    ):
        assert [row for index, row in found if index == 0] == rows[:half]
        assert [row for index, row in found if index == 1] == rows[half:]
    assert sorted(get(list(maker.each(rows)))) == rows
    assert list(submit(maker.each, [])) == []


@needs(apart=True)
def generators_send_items_at_once(harness: Harness) -> None:
    """An item is there while its generator makes the next one."""
    maker = harness.build(Maker, 2)
    gate = _gate(harness)
    items = maker.first_then_waits(gate)
    assert get(next(items)) == "first"
    Path(gate).touch()
    assert get(list(items)) == ["second"]


def generators_stay_near_their_loop(harness: Harness) -> None:
    """A generator is a few items ahead at most; the loop calls the same component; its end closes the generator."""
    maker = harness.build(Maker, 2, mesh=TWO)
    for seen, item in enumerate(maker.endless(), 1):
        assert all(made <= seen + AHEAD + 1 for made, _ in harness.each(2, maker.counts())), item
        if seen == 8:
            break
    del item
    _wait_for_closed(harness, maker, 1)
    items = submit(maker.endless_later)
    assert [get(next(items)) for _ in range(harness.workers(2))] == [1] * harness.workers(2)
    items.close()
    assert [closed for _, closed in harness.each(2, maker.counts())] == [2] * harness.workers(2)
    assert next(items, None) is None


def _wait_for_closed(harness: Harness, maker: Maker, count: int) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if all(closed == count for _, closed in harness.each(2, maker.counts())):
            return
        time.sleep(0.02)
    raise AssertionError(f"not closed {count} times: {harness.each(2, maker.counts())}")


def generators_fail_after_their_items(harness: Harness) -> None:
    """An exception comes after the items before it; a plain function cannot return a generator."""
    maker = harness.build(Maker, 2, mesh=TWO)
    found = []
    with raises(ValueError, "Maker.breaks failed on", "dp=", "out of rows"):
        for item in maker.breaks([1, 2, 3, 4]):
            found.append(get(item))
    assert found[:1] and set(found) <= {1, 2, 3, 4}
    with raises(CollectError, "Maker.returns_generator", "generator"):
        get(maker.returns_generator())
    with raises(DispatchError, "Counter.add", "runs once"):
        get(harness.build(Counter, 2).add(maker.each([1, 2])))  # type: ignore[arg-type]  # the mistake


def generators_end_at_the_deadline(harness: Harness) -> None:
    """The timeout is that of an item: a late step is cancelled, and the generator closed."""
    maker = harness.build(Maker, 2, mesh=TWO)
    items = submit(maker.stops)
    with raises(CallTimeoutError, "Maker.stops"):
        for item in items:
            assert get(item) == 1
    _wait_for_closed(harness, maker, 1)


@needs(apart=True)
def items_move_from_worker_to_worker(harness: Harness) -> None:
    """An item is handed to another component by name."""
    maker, sink = harness.build(Maker, 2, mesh=TWO), harness.build(Echo, 4, mesh=FOUR["dp4"])
    taken = [submit(sink.given_whole, item) for item in submit(maker.each, [5, 6, 7])]
    assert sorted(str(harness.each(4, one)[0]) for one in taken) == sorted(
        str(harness.each(4, sink.given_whole(row))[0]) for row in (5, 6, 7)
    )


CHECKS = (
    pieces_come_when_they_are_done,
    pieces_make_the_whole,
    generators_send_their_items,
    generators_send_items_at_once,
    generators_stay_near_their_loop,
    generators_fail_after_their_items,
    generators_end_at_the_deadline,
    items_move_from_worker_to_worker,
)
