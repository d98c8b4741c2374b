"""What each word of dispatch and collect does with arguments and results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from tests.conformance.checks.dispatching import shares_of
from tests.conformance.harness import raises
from tests.conformance.subjects.components import Counter
from tests.conformance.subjects.echo import Batch, Echo, Reducer
from tests.conformance.subjects.faults import Faulty
from tests.conformance.subjects.layouts import EIGHT, FOUR, TWO

from twinkle_remote import Lazy, submit
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from tests.conformance import Harness


def test_slice_splits_lists_over_workers(harness: Harness) -> None:
    """Dispatch "slice": lists evenly over workers, whatever the mesh; all else whole."""
    for mesh in (None, FOUR["dp2 tp2"]):
        echo = harness.build(Echo, 4, mesh=mesh)
        whole: tuple[Any, ...] = ("text", {"rows": [1, 2, 3]}, 7, None)
        seen = harness.each(4, echo.given_by_worker(list(range(6)), *whole, key=[10, 11, 12, 13, 14, 15]))
        for rank, part in enumerate(shares_of(harness, None, 4, 6)):
            args, kwargs = (list(range(6))[part], *whole), {"key": [10, 11, 12, 13, 14, 15][part]}
            assert seen[rank] == (rank, args, kwargs), seen[rank]


def test_all_sends_everything_whole(harness: Harness) -> None:
    """Dispatch "all": every worker receives all arguments whole."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp4"])
    seen = harness.each(4, echo.given_whole([1, 2, 3], (4,), key={"rows": [5]}))
    assert seen == [(rank, ([1, 2, 3], (4,)), {"key": {"rows": [5]}}) for rank in range(harness.workers(4))]


def test_slice_dp_without_a_mesh_splits_over_workers(harness: Harness) -> None:
    """Dispatch "slice_dp" of a component without a mesh: each worker is a data rank."""
    seen = harness.each(4, harness.build(Echo, 4).given([1, 2, 3, 4, 5]))
    assert [args[0] for _, args, _ in seen] == [[1, 2, 3, 4, 5][part] for part in shares_of(harness, None, 4, 5)]


def test_callable_dispatch_gets_length_index_and_mesh(harness: Harness) -> None:
    """A callable dispatch makes each worker's arguments; it gets the mesh, or None without one."""
    for mesh in (None, FOUR["dp2 tp2"]):
        echo = harness.build(Echo, 4, mesh=mesh)
        count = harness.workers(4)
        seen = harness.each(4, echo.given_by_function("value"))
        assert seen == [("value", (rank, count), mesh is not None) for rank in range(count)]


def test_execute_first_runs_on_the_first_worker(harness: Harness) -> None:
    """A function with execute "first" runs on one worker with all rows, and returns the bare value."""
    assert harness.build(Echo, 4, mesh=FOUR["dp4"]).first_only([1, 2, 3]) == (0, [1, 2, 3])


def test_a_batch_smaller_than_the_mesh_leaves_empty_slices(harness: Harness) -> None:
    """Data ranks without rows enter the call with an empty slice of the right type."""
    mesh = EIGHT["dp8"]
    echo = harness.build(Echo, 8, mesh=mesh)
    batch = {"list": [1, 2], "tuple": ([1, 2], "a"), "data": Batch([1, 2], [3, 4])}
    seen = harness.each(8, echo.given(batch))
    assert len(seen) == harness.workers(8)
    for rank, part in enumerate(shares_of(harness, mesh, 8, 2)):
        want = {"list": [1, 2][part], "tuple": ([1, 2][part], "a"), "data": Batch([1, 2][part], [3, 4][part])}
        assert seen[rank][1] == (want,), seen[rank]
    assert echo.rows([]) == [] and echo.rows(([], [])) == ([], []) and echo.rows({"a": []}) == {"a": []}


def test_wrong_arguments_are_refused_before_anything_is_sent(harness: Harness) -> None:
    """A TypeError on the caller that shows the signature; no worker receives the call."""
    faulty = harness.build(Faulty, 4)
    untyped = cast("Any", faulty)
    with raises(TypeError, "Faulty.takes(rows: ", "unexpected keyword argument 'row'"):
        untyped.takes([1], row=[1])
    with raises(TypeError, "Faulty.takes", "missing a required argument: 'rows'"):
        untyped.takes()
    with raises(TypeError, "too many positional arguments"):
        untyped.takes([1], 2)
    assert harness.each(4, faulty.count()) == [0] * harness.workers(4)


def test_none_is_a_list_in_rank_order_or_the_bare_value(harness: Harness) -> None:
    """`none`: one result of each worker, in rank order; bare where one worker was called."""
    for mesh in (None, FOUR["pp2 dp2"]):
        assert harness.each(4, harness.build(Echo, 4, mesh=mesh).ranks()) == list(range(harness.workers(4)))
    assert harness.build(Echo, 1).ranks() == 0
    assert harness.build(Echo, 4).first_only(1) == (0, 1)


def test_first_is_the_result_of_the_first_worker(harness: Harness) -> None:
    """`first`: the first worker's result."""
    for mesh in (None, FOUR["dp4"]):
        assert harness.build(Echo, 4, mesh=mesh).rank_of_first() == 0


def test_last_pp_is_the_last_stage_once_per_data_rank(harness: Harness) -> None:
    """`last_pp`: the last stage's results, one for each data rank, in data order."""
    for name, mesh in EIGHT.items():
        want = [0] if harness.in_process else list(mesh.collect_ranks)
        assert harness.build(Echo, 8, mesh=mesh).ranks_of_last_stage() == want, name


def test_callable_collect_gets_results_and_mesh(harness: Harness) -> None:
    """A callable collect gets every called worker's result and the mesh, or None without one."""
    count = harness.workers(4)
    assert harness.build(Echo, 4).by_function() == (count - 1, count, None)
    assert harness.build(Echo, 4, mesh=FOUR["dp2 tp2"]).by_function() == (count - 1, count, count)


def test_sum_and_mean_count_each_data_rank_once(harness: Harness) -> None:
    """Sums and means over the data ranks equal those over all rows; a mean weighs each rank by its rows."""
    rows = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
    for name, mesh in EIGHT.items():
        reducer = harness.build(Reducer, 8, mesh=mesh)
        assert reducer.total(rows) == 511.0, name
        assert math.isclose(reducer.mean(rows)["mean"], 511.0 / 9), name
        assert math.isclose(reducer.mean_of_rows(rows), 511.0 / 9), name
        assert math.isclose(reducer.mean_of_rows(rows[:3]), 7.0 / 3), name


def test_submit_is_always_lazy(harness: Harness) -> None:
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


def test_slice_divides_lazy_lists_alone(harness: Harness) -> None:
    """Dispatch "slice": a lazy list is divided over the workers, any other lazy value goes whole."""
    mesh = FOUR["dp2 tp2"]
    echo, sink = harness.build(Echo, 2, mesh=TWO), harness.build(Echo, 4, mesh=mesh)
    for value in ([1, 2, 3, 4, 5], ([1, 2, 3], [4, 5, 6]), {"rows": [1, 2, 3]}, None):
        lazy = submit(echo.rows, value) if value is not None else submit(echo.nothing)
        assert harness.each(4, sink.given_by_worker(lazy)) == harness.each(4, sink.given_by_worker(value)), value
    rows = submit(sink.rows_by_worker, submit(echo.rows, [1, 2, 3, 4, 5]))
    assert echo.rows(rows) == [1, 2, 3, 4, 5]
    same = submit(sink.rows_by_worker, submit(echo.rows, {"rows": [7]}))
    assert echo.copies(same) == {"rows": [7] * (harness.shares(mesh) * harness.shares(TWO))}


def test_handed_over_lengths_have_to_agree(harness: Harness) -> None:
    """A lazy argument with another number of rows than the rest of the call: an error with both numbers."""
    echo, sink = harness.build(Echo, 4, mesh=FOUR["dp4"]), harness.build(Echo, 2, mesh=TWO)
    with raises(DispatchError, "Echo.given", "3", "5", "Replicate"):
        harness.each(2, sink.given(submit(echo.rows, [1, 2, 3]), [1, 2, 3, 4, 5]))
    with raises(DispatchError, "Echo.given", "3", "2", "Replicate"):
        harness.each(2, sink.given(submit(echo.rows, [1, 2, 3]), submit(echo.rows, [1, 2])))
