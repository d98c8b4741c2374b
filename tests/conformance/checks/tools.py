"""Checks: run_on_workers, stats and current_worker; a task ends with its calls, and no failure is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance.harness import SIZES, checks_of, needs, plain, raises
from tests.conformance.subjects import callers
from tests.conformance.subjects.components import Counter
from tests.conformance.subjects.layouts import FOUR

from twinkle_remote import current_worker, get, run_on_workers, submit
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from tests.conformance.harness import Harness


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


@needs(apart=True)
def many_calls_with_dropped_results_run_in_order(harness: Harness) -> None:
    """A thousand calls whose results are dropped run in order; the number of pending calls stays limited."""
    counter = harness.build(Counter, 2)
    for _ in range(1000):
        submit(counter.add)
    assert counter.current == 1000


def a_task_ends_with_the_calls_that_it_made(harness: Harness) -> None:
    """Also with the calls that those make, and so on; their lazy results were dropped."""
    made = [harness.build(callers.Caller, size) for size in SIZES[::-1]]
    path = Path(harness.folder, f"touched-{time.monotonic_ns()}")
    plain(made[0].passes_on(made[1:], str(path), 0.1))
    assert path.exists()


def a_task_fails_with_a_call_that_it_made(harness: Harness) -> None:
    """The error names the worker that made the call, and its line there; of a coroutine too."""
    caller, other = harness.build(callers.Caller, 1), harness.build(callers.Caller, 2)
    maker = f" on {harness.groups[1]}[0/1]"
    for call in (caller.lets_fail, caller.lets_fail_later):
        with raises(KeyError, "Caller.raises failed on", f"called from {callers.__file__}:", maker):
            get(submit(call, other))
    assert plain(caller.value(1)) == 1


CHECKS = checks_of(globals())
