"""Checks: components as objects: construction, handles, iteration, context managers, properties, release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.harness import checks_of, needs, plain, raises
from tests.conformance.subjects.components import Caller, Counter, Holder, Numbers
from tests.conformance.subjects.layouts import TWO

from twinkle_mesh import DeviceMesh
from twinkle_remote import release, submit
from twinkle_remote.errors import NotInitializedError

if TYPE_CHECKING:
    from tests.conformance.harness import Harness


def handles_work_where_they_are_passed(harness: Harness) -> None:
    """A handle in a constructor's arguments or a call's is used there, from every rank."""
    counter = harness.build(Counter, 1, 10)
    caller = harness.build(Caller, 2, counter)
    called = harness.each(2, caller.call_other(1))
    assert sorted(called) == [11 + i for i in range(harness.workers(2))]
    other = harness.build(Counter, 4, 50)
    assert caller.call_given(other, 5) == 55 and other.add(0) == 55


def handles_of_the_own_group_call_the_own_rank(harness: Harness) -> None:
    """On a worker that holds the component, a call of its handle just runs there."""
    counter = harness.build(Counter, 2, 1)
    caller = harness.build(Caller, 2, counter)
    assert harness.each(2, caller.call_other(2)) == [3] * harness.workers(2)
    assert counter.add(0) == 3


def iterators_end_and_lose_nothing(harness: Harness) -> None:
    """`for` over an iterator: every step, then the end; after a `break` the next loop gets the remaining steps."""
    for mesh, data in ((None, range(2)), (TWO, range(2)), (DeviceMesh.from_sizes(dp_size=1, tp_size=2), range(1))):
        numbers = harness.build(Numbers, 2, 5, mesh=mesh)
        shares = range(1) if harness.in_process else data
        steps = [[10 * step + rank for rank in shares] for step in range(1, 6)]
        assert len(numbers) == 5
        seen = []
        for batch in numbers:
            seen.append(plain(batch))
            if len(seen) == 2:
                break
        seen.append(plain(next(numbers)))
        seen.extend(plain(batch) for batch in numbers)
        assert seen == steps, seen
        assert list(numbers) == []
        with raises(StopIteration):
            next(numbers)


def methods_that_return_the_component_return_the_handle(harness: Harness) -> None:
    """If a method returns the component itself, the caller gets its handle."""
    counter = harness.build(Counter, 2, 1)
    assert plain(counter.itself()) is counter and plain(counter.itself()).add(1) == 2


def released_components_are_gone(harness: Harness) -> None:
    """`release` frees the object on every worker; earlier calls run, and later calls are errors."""
    name = f"weights-{id(harness)}"
    holder, other = harness.build(Holder, 2, name), harness.build(Holder, 2, "others")
    assert harness.each(2, other.holds(name)) == [True] * harness.workers(2)
    last = submit(holder.rows, [1, 2])
    release(holder)
    assert last == [1, 2]
    if harness.in_process:
        assert holder.rows([3]) == [3] and other.holds(name)
        return
    assert harness.each(2, other.holds(name)) == [False] * harness.workers(2)
    release(holder)
    with raises(NotInitializedError, "Holder.rows", "was released"):
        holder.rows([3])
    assert other.rows([3]) == [3]


@needs(apart=True)
def releases_are_known_to_other_workers(harness: Harness) -> None:
    """A worker that holds the handle of a released component gets an error as well."""
    counter = harness.build(Counter, 1)
    caller = harness.build(Caller, 2, counter)
    plain(caller.call_other(1))
    release(counter)
    with raises(NotInitializedError, "Counter.add", "released"):
        plain(caller.call_other(1))


CHECKS = checks_of(globals())
