"""Checks: the construction of components, and their release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.call.submit import submit
from twinkle_remote.component.release import release
from twinkle_remote.conformance.harness import needs, plain, raises
from twinkle_remote.conformance.subjects.lifetimes import Holder, Keeper, Seeded
from twinkle_remote.errors import NotInitializedError

if TYPE_CHECKING:
    from twinkle_remote.conformance.harness import Harness


@needs(apart=True)
def constructors_draw_alike_on_every_rank(harness: Harness) -> None:
    """A constructor that seeds Python's, numpy's and torch's generators draws what a process of its own would draw."""
    alone = harness.build(Seeded, 1, 7)
    assert harness.each(4, harness.build(Seeded, 4, 7).drawn()) == [plain(alone.drawn())] * 4


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
    holder = harness.build(Holder, 2, "weights")
    keeper = harness.build(Keeper, 1, holder)
    assert keeper.asks() == [1]
    release(holder)
    with raises(NotInitializedError, "Holder.rows", "released"):
        plain(keeper.asks())


CHECKS = (
    constructors_draw_alike_on_every_rank,
    released_components_are_gone,
    releases_are_known_to_other_workers,
)
