"""Checks: async methods on the workers' event loops."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tests.conformance.harness import checks_of, raises
from tests.conformance.subjects.coroutines import CONCURRENCY, Asks
from tests.conformance.subjects.layouts import FOUR, TWO

from twinkle_remote import get, submit
from twinkle_remote.errors import CallTimeoutError

if TYPE_CHECKING:
    from tests.conformance.harness import Harness

_CALLS = 3 * CONCURRENCY
_PATIENCE = 20.0


def async_methods_run_beside_each_other(harness: Harness) -> None:
    """So many at once, begun in one order on every rank; an ordinary method goes on meanwhile."""
    asks = harness.build(Asks, 4, mesh=FOUR["dp2 tp2"])

    async def program() -> list[object]:
        calls = [submit(asks.opened, index) for index in range(_CALLS)]
        until = time.monotonic() + _PATIENCE
        while min(harness.each(4, asks.most())) < CONCURRENCY and time.monotonic() < until:
            await asyncio.sleep(0.01)
        get(asks.open())
        return [harness.each(4, await call) for call in calls]

    answers = asyncio.run(program())
    assert answers == [[index] * harness.workers(4) for index in range(_CALLS)]
    assert harness.each(4, asks.most()) == [CONCURRENCY] * harness.workers(4)
    begun = [f"begin {index}" for index in range(_CALLS)]
    assert harness.each(4, asks.log()) == [begun] * harness.workers(4)


def async_methods_are_awaited(harness: Harness) -> None:
    """`await handle.method(...)` gives the value, several together."""
    asks = harness.build(Asks, 2, mesh=TWO)

    async def program() -> tuple[object, list[object]]:
        return await asks.echo("one"), list(await asyncio.gather(*(asks.echo(index) for index in range(9))))

    assert asyncio.run(program()) == ("one", list(range(9)))


def async_methods_know_their_place(harness: Harness) -> None:
    """Each call has its own context variables, and `current_worker` is right after awaits."""
    asks = harness.build(Asks, 4, mesh=FOUR["dp4"])
    calls = [submit(asks.where, mark) for mark in range(8)]
    for mark, call in enumerate(calls):
        assert harness.each(4, call) == [(mark, rank, True) for rank in range(harness.workers(4))]


def async_methods_end_at_the_deadline(harness: Harness) -> None:
    """A late coroutine is cancelled and cleans up; the error shows where it waited; the others go on."""
    asks = harness.build(Asks, 2, mesh=TWO)
    with raises(CallTimeoutError, "Asks.late", "in waits_deep"):
        get(submit(asks.late))
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if all("cleaned up" in log for log in harness.each(2, asks.log())):
            break
        time.sleep(0.02)
    assert harness.each(2, asks.log()) == [["cleaned up"]] * harness.workers(2)
    assert get(asks.echo(1)) == 1


CHECKS = checks_of(globals())
