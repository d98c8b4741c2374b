"""Checks: what a call keeps of values of many kinds, and what it refuses because it cannot know."""

from __future__ import annotations

import itertools
from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.submit import submit
from twinkle_remote.conformance.harness import needs, plain, raises
from twinkle_remote.conformance.subjects.echo import Echo
from twinkle_remote.conformance.subjects.kinds import Box, Growing, Hoard, Kinds, Lengths, Prompts, Whole, grow
from twinkle_remote.conformance.subjects.layouts import FOUR, TWO
from twinkle_remote.errors import CollectError, DispatchError

if TYPE_CHECKING:
    from twinkle_remote.conformance.harness import Harness


def names_of_many_arguments_stand_for_all_of_them(harness: Harness) -> None:
    """`replicate=` that names `**options` or `*extra`: all that they take goes whole."""
    kinds = harness.build(Kinds, 2, mesh=TWO)
    stop = ["</s>", "<eos>"]
    assert kinds.with_options(["a", "b"], stop=stop) == [("a", stop), ("b", stop)]
    assert kinds.with_extra(["a", "b"], stop, (1,)) == [("a", stop, (1,)), ("b", stop, (1,))]


def each_worker_of_a_callable_dispatch_counts(harness: Harness) -> None:
    """A callable dispatch: the rows of each called worker are in the result, on meshes with copies too."""
    for mesh in (None, FOUR["dp2 tp2"], FOUR["pp2 dp2"]):
        kinds = harness.build(Kinds, 4, mesh=mesh)
        count = harness.workers(4)
        rows = [1, 2, 3, 4, 5, 6]
        dealt = [row for i in range(count) for row in rows[i::count]] if not harness.in_process else rows
        assert kinds.dealt(rows) == dealt and kinds.dealt_total(rows) == 21
        assert plain(harness.build(Echo, 2, mesh=TWO).rows(kinds.dealt(rows))) == dealt


def repeated_rows_count_in_no_reduction(harness: Harness) -> None:
    """`uneven="pad"` with "sum" and "mean": the method takes the mask of its rows, and weights count its own rows."""
    kinds = harness.build(Kinds, 4, mesh=FOUR["dp4"])
    for rows in ([1, 2, 30], [5], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]):
        assert kinds.padded_total(rows) == sum(rows)
        assert abs(plain(kinds.padded_mean(rows)) - sum(rows) / len(rows)) < 1e-9
        echo = harness.build(Echo, 2, mesh=TWO)
        assert kinds.padded_total(echo.rows(rows)) == sum(rows)


def what_is_iterable_and_not_known_is_refused(harness: Harness) -> None:
    """Sets, views, iterators and objects that hold rows in fields: refused by name where rows are divided."""
    kinds = harness.build(Kinds, 2, mesh=TWO)
    if harness.in_process:
        return
    for make in (lambda: {1, 2}, lambda: {"a": 1}.values(), lambda: itertools.chain([1], [2]), lambda: Box([1, 2])):
        made: Any = make()
        for value in (made, {"deep": made}):
            with raises(DispatchError, type(made).__name__):
                plain(kinds.echo(value))


def caches_of_the_whole_stay_with_the_whole(harness: Harness) -> None:
    """A cached property is computed again in each share, and in a joined value."""
    kinds = harness.build(Kinds, 2, mesh=TWO)
    joined = plain(kinds.counted([1, 2, 3, 4])) if not harness.served else None
    assert joined is None or (joined.total, joined.lengths) == (10, [1, 2, 3, 4])
    if not harness.served:
        batch = Lengths([1, 2, 3, 4])
        assert batch.total == 10
        assert harness.each(2, kinds.total_of(batch)) == ([10] if harness.in_process else [3, 7])


def subclasses_of_lists_keep_type_and_attributes(harness: Harness) -> None:
    """A subclass of list arrives as it is, and comes back as it is; attributes that may be of rows are refused."""
    if harness.served:
        return
    kinds = harness.build(Kinds, 2, mesh=TWO)
    prompts = Prompts(["a", "b", "c"])
    prompts.scale = 0.2
    parts = [["a", "b", "c"]] if harness.in_process else [["a", "b"], ["c"]]
    assert harness.each(2, kinds.scale_of(prompts)) == [("Prompts", 0.2, part) for part in parts]
    back = plain(kinds.echo(prompts))
    assert type(back) is Prompts and back.scale == 0.2 and list(back) == ["a", "b", "c"]
    if not harness.in_process:
        prompts.lengths = [1, 1, 1]  # type: ignore[attr-defined]  # the mistake
        with raises(DispatchError, "Prompts", "lengths", "register_splitter"):
            kinds.echo(prompts)


def joining_is_as_strict_as_dividing(harness: Harness) -> None:
    """`flatten`: columns of one length; no numbers and no unknown containers next to rows; equal texts stay."""
    if harness.in_process or harness.served:
        return
    kinds = harness.build(Kinds, 2, mesh=TWO)
    for kind in ("number", "names", "set"):
        with raises(CollectError, "Kinds.rows_and"):
            plain(kinds.rows_and([1, 2, 3, 4], Whole(kind)))
    for kind in ("text", "none"):
        assert kinds.rows_and([1, 2, 3], Whole(kind)) == {"rows": [1, 2, 3], "beside": Whole(kind).value}


def writes_are_seen_by_nobody_else(harness: Harness) -> None:
    """A value that a caller or a worker writes to is its own: nobody else sees it, in any backend."""
    kinds: tuple[type[Any], ...] = (list,) if harness.served else (list, set, bytearray, deque, Growing)
    for kind in kinds:
        hoard, other, value = harness.build(Hoard, 2), harness.build(Hoard, 2), kind()
        one = [1] * harness.workers(2)
        kept = submit(hoard.keep, value)
        grow(value)
        plain(kept)
        assert harness.each(2, hoard.size()) == [0] * harness.workers(2), "its caller wrote to it"
        assert harness.each(2, hoard.grow()) == one, "each rank has its own"
        assert len(value) == 1, "a worker wrote to it"
        given = submit(hoard.given)
        plain(hoard.grow())
        mine = plain(given)
        assert len(mine) == 1, "its worker wrote to it later"
        grow(mine)
        plain(other.keep(given))
        assert harness.each(2, other.size()) == one, "a reader wrote to it"


@needs("numpy", "pandas")
def types_and_indexes_are_those_of_one_worker(harness: Harness) -> None:
    """Arrays of two types join only if no element becomes another; fresh indexes of frames go on."""
    if harness.in_process or harness.served:
        return
    kinds = harness.build(Kinds, 2, mesh=TWO)
    for rows in ([1, 2, "x", "y"], [2**60 + 1, 3, 0.5, 1.0]):
        with raises(CollectError, "Kinds.array", "types are"):
            plain(kinds.array(rows))
    assert plain(kinds.array([1, 2, 0.5, 1.5])).tolist() == [1, 2, 0.5, 1.5]
    pandas = import_module("pandas")
    want = pandas.DataFrame({"row": [1, 2, 3]})
    pandas.testing.assert_frame_equal(plain(kinds.frame([1, 2, 3])), want)
    pandas.testing.assert_frame_equal(plain(harness.build(Kinds, 4).echo(kinds.frame([1, 2, 3]))), want)


CHECKS = (
    names_of_many_arguments_stand_for_all_of_them,
    each_worker_of_a_callable_dispatch_counts,
    repeated_rows_count_in_no_reduction,
    what_is_iterable_and_not_known_is_refused,
    caches_of_the_whole_stay_with_the_whole,
    subclasses_of_lists_keep_type_and_attributes,
    joining_is_as_strict_as_dividing,
    types_and_indexes_are_those_of_one_worker,
    writes_are_seen_by_nobody_else,
)
