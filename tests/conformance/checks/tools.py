"""Checks: submit, explain, run_on_workers, stats, current_worker, and what a second `initialize` does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from tests.conformance.harness import SIZES, needs, plain, raises
from tests.conformance.subjects.components import Caller, Counter
from tests.conformance.subjects.echo import Echo
from tests.conformance.subjects.faults import Faulty
from tests.conformance.subjects.layouts import EIGHT, FOUR

from twinkle_mesh import DeviceGroup
from twinkle_remote import Lazy, current_worker, explain, initialize, run_on_workers, stats, submit
from twinkle_remote.errors import AlreadyInitializedError, DispatchError
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from tests.conformance.harness import Harness


def submit_is_always_lazy(harness: Harness) -> None:
    """`submit` gives a lazy result, whatever the function's option is, and refuses other callables."""
    echo = harness.build(Echo, 2)
    for method in (echo.rows, echo.at_once, echo.after_all):
        lazy = submit(method, [1, 2])
        assert isinstance(lazy, Lazy)
        assert lazy.result() == [1, 2]
    with raises(TypeError, "remote function of a component"):
        submit(len, [1])
    if not harness.in_process:
        with raises(TypeError, "remote function of a component"):
            submit(Counter(1).add)
    with raises(TypeError, "Echo.rows", "missing"):
        cast("Any", submit)(echo.rows)


@needs(served="the client divides nothing")
def explain_tells_what_a_call_would_do(harness: Harness) -> None:
    """`explain` shows rank, coordinate, slice of each argument, and the ranks that are read; nothing runs."""
    mesh = EIGHT["dp2 pp2 tp2"]
    faulty = harness.build(Faulty, 8, mesh=mesh)
    found = explain(faulty.takes, [1, 2, 3])
    assert [row.rank for row in found.rows] == list(range(harness.workers(8)))
    if harness.in_process:
        assert found.rows[0].arguments == {"rows": "list[0:3]"} and found.reads == (0,)
    else:
        slices = [row.arguments["rows"] for row in found.rows]
        assert slices == [f"list[{part.start}:{part.stop}]" for part in (mesh.get_slice(3, rank) for rank in range(8))]
        assert [row.coordinate for row in found.rows] == [mesh.coordinate(rank) for rank in range(8)]
        assert found.reads == tuple(mesh.collect_ranks) and "rows joined" in found.collect
    assert "Faulty.takes" in str(found) and harness.groups[8] in str(found)
    assert harness.each(8, faulty.count()) == [0] * harness.workers(8)
    with raises(TypeError, "Faulty.takes", "missing"):
        cast("Any", explain)(faulty.takes)
    with raises(DispatchError, "Faulty.takes", "generator"):
        explain(faulty.takes, cast("Any", (i for i in range(3))))


def functions_run_on_the_workers(harness: Harness) -> None:
    """`run_on_workers` calls a function with the component on each of its workers, each with its own arguments."""
    counter = harness.build(Counter, 4, 10)
    count = harness.workers(4)
    if harness.served:
        with raises(DispatchError, "Counter._add", "cannot be sent", "make it a remote function"):
            run_on_workers(counter, _add, [(1,)])
        return
    assert run_on_workers(counter, _add, [(rank,) for rank in range(count)]) == [
        (rank, 10 + rank) for rank in range(count)
    ]
    with raises(ValueError, f"{count} workers", "7"):
        run_on_workers(counter, _add, [(1,)] * 7)
    with raises(TypeError, "expected a component, got int"):
        run_on_workers(5, _add)


def _add(counter: Counter, amount: int) -> tuple[int | None, int]:
    counter.value += amount
    return current_worker().rank, counter.value


def the_context_tells_where_code_runs(harness: Harness) -> None:
    """`current_worker`: rank, group and coordinate on a worker; no rank on the driver, also after a call."""
    assert current_worker().rank is None and current_worker().group is None and current_worker().world_size == 1
    mesh = FOUR["dp2 tp2"]
    counter = harness.build(Counter, 4, mesh=mesh)
    seen = harness.each(4, counter.where())
    for rank in range(harness.workers(4)):
        place = {"dp": 0, "tp": 0} if harness.in_process else mesh.coordinate(rank)
        assert seen[rank] == (harness.groups[4], rank, harness.workers(4), place), seen[rank]
    assert current_worker().rank is None


@needs(served="a record is that of one worker")
def stats_count_what_calls_moved(harness: Harness) -> None:
    """One record for each call: its method, its ranks, their times and bytes."""
    echo = harness.build(Echo, 4)
    plain(echo.ranks())
    record = [one for one in stats() if one.method == "Echo.ranks"][-1]
    assert record.group == harness.groups[4]
    assert record.workers == harness.workers(4) == len(record.ranks) and not record.failed
    assert record.skew_seconds >= 0.0 and record.queue_seconds >= 0.0 and record.driver_seconds > 0.0
    faulty = harness.build(Faulty, 2)
    with raises(KeyError):
        plain(faulty.raises("key"))
    assert [one for one in stats() if one.method == "Faulty.raises"][-1].failed[0] == 0


def stats_count_the_calls_of_workers(harness: Harness) -> None:
    """A call that a component makes has its record in the `stats()` of the process that makes it, also if it fails."""
    counter = harness.build(Counter, 4, 10)
    caller = harness.build(Caller, 2, counter)
    began = time.time()
    plain(caller.call_given(counter, 1))
    with raises(TypeError):
        plain(caller.call_given(counter, cast("int", "one")))
    group, four = harness.groups[4], harness.workers(4)
    made = [one for one in plain(caller.calls_made(began)) if one[0] == "Counter.add"]
    assert made == [("Counter.add", group, four, False), ("Counter.add", group, four, True)], made


def a_second_initialize_is_checked(harness: Harness) -> None:
    """`initialize` with the same arguments does nothing; with others it is an error that shows the difference."""
    groups = [DeviceGroup(harness.groups[size], size, "CPU") for size in SIZES]
    before = running()
    initialize(harness.mode, groups=groups, **harness.options)
    assert running() is before
    with raises(AlreadyInitializedError, "lazy_collect: True before, False now", "shutdown"):
        initialize(harness.mode, groups=groups, lazy_collect=False, **harness.options)
    with raises(AlreadyInitializedError, "groups"):
        initialize(harness.mode, groups=groups[:2], **harness.options)
    assert running() is before


@needs(apart=True)
def many_calls_with_dropped_results_run_in_order(harness: Harness) -> None:
    """A thousand calls whose results are dropped run in order; the number of pending calls stays limited."""
    counter = harness.build(Counter, 2)
    for _ in range(1000):
        submit(counter.add)
    assert counter.current == 1000


CHECKS = (
    submit_is_always_lazy,
    explain_tells_what_a_call_would_do,
    functions_run_on_the_workers,
    the_context_tells_where_code_runs,
    stats_count_what_calls_moved,
    stats_count_the_calls_of_workers,
    a_second_initialize_is_checked,
    many_calls_with_dropped_results_run_in_order,
)
