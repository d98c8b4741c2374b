"""Checks: collecting the workers' results."""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.conformance.harness import needs, plain, raises
from tests.conformance.subjects.components import Holding, Writer
from tests.conformance.subjects.echo import Batch, Echo, Pair, Reducer
from tests.conformance.subjects.layouts import EIGHT, FOUR, SCATTERED, TWO

from twinkle_mesh import balanced_slice
from twinkle_remote import get

if TYPE_CHECKING:
    from tests.conformance.harness import Harness

    from twinkle_mesh import DeviceMesh


def collecting_gives_back_what_was_dispatched(harness: Harness) -> None:
    """`flatten` after "slice_dp" is the identity, on every mesh, for every length and type; so it is after "slice"."""
    for name, mesh in EIGHT.items():
        echo = harness.build(Echo, 8, mesh=mesh)
        for length in (0, 1, 7, 8, 11):
            rows = list(range(length))
            batch = {"data": Batch(rows, rows), "pair": Pair(rows, rows), "tuple": (rows, rows), "note": "n"}
            assert echo.rows(rows) == rows, (name, length)
            assert echo.rows(batch) == batch, (name, length)
            assert echo.rows_by_worker(rows) == rows, (name, length)


@needs("numpy", "torch")
def collecting_gives_back_arrays_and_tensors(harness: Harness) -> None:
    """The same for arrays and tensors of several dims and types, with 0 rows too."""
    numpy, torch = import_module("numpy"), import_module("torch")
    for mesh in (EIGHT["fsdp2 dp2 tp2"], EIGHT["irregular"]):
        echo = harness.build(Echo, 8, mesh=mesh)
        for length in (0, 3, 9, 5000):
            for array in (numpy.arange(length), numpy.ones((length, 2, 2), dtype="float16")):
                back = plain(echo.rows(array))
                assert back.dtype == array.dtype and numpy.array_equal(back, array)
    for mesh in (FOUR["fsdp2 dp2"], SCATTERED):  # on fewer workers, because each takes seconds to load torch
        echo = harness.build(Echo, 4, mesh=mesh)
        for length in (0, 3, 9, 5000):
            tensor = torch.arange(length * 3).reshape(length, 3).to(torch.bfloat16)
            back = plain(echo.rows({"tensor": tensor}))["tensor"]
            assert back.dtype == tensor.dtype and torch.equal(back, tensor)


def flatten_counts_each_data_rank_once(harness: Harness) -> None:
    """Copies on all workers come back once for each data rank, not for each worker."""
    for name, mesh in EIGHT.items():
        assert harness.build(Echo, 8, mesh=mesh).copies(["row"]) == ["row"] * harness.shares(mesh), name
    assert harness.build(Echo, 4).copies(["row"]) == ["row"] * harness.workers(4)


def none_is_a_list_in_rank_order_or_the_bare_value(harness: Harness) -> None:
    """`none`: one result of each worker, in rank order; bare where one worker was called."""
    for mesh in (None, FOUR["pp2 dp2"]):
        assert harness.each(4, harness.build(Echo, 4, mesh=mesh).ranks()) == list(range(harness.workers(4)))
    assert harness.build(Echo, 1).ranks() == 0
    assert harness.build(Echo, 4).first_only(1) == (0, 1)


def first_is_the_result_of_the_first_worker(harness: Harness) -> None:
    """`first`: the first worker's result."""
    for mesh in (None, FOUR["dp4"]):
        assert harness.build(Echo, 4, mesh=mesh).rank_of_first() == 0


def last_pp_is_the_last_stage_once_per_data_rank(harness: Harness) -> None:
    """`last_pp`: the last stage's results, one for each data rank, in data order."""
    for name, mesh in EIGHT.items():
        want = [0] if harness.in_process else list(mesh.collect_ranks)
        assert harness.build(Echo, 8, mesh=mesh).ranks_of_last_stage() == want, name


def callable_collect_gets_results_and_mesh(harness: Harness) -> None:
    """A callable collect gets every called worker's result and the mesh, or None without one."""
    count = harness.workers(4)
    assert harness.build(Echo, 4).by_function() == (count - 1, count, None)
    assert harness.build(Echo, 4, mesh=FOUR["dp2 tp2"]).by_function() == (count - 1, count, count)


def sum_and_mean_count_each_data_rank_once(harness: Harness) -> None:
    """Sums and means over the data ranks equal those over all rows; a mean weighs each rank by its rows."""
    rows = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
    for name, mesh in EIGHT.items():
        reducer = harness.build(Reducer, 8, mesh=mesh)
        assert reducer.total(rows) == 511.0, name
        assert math.isclose(reducer.mean(rows)["mean"], 511.0 / 9), name
        assert math.isclose(reducer.mean_of_rows(rows), 511.0 / 9), name
        assert math.isclose(reducer.mean_of_rows(rows[:3]), 7.0 / 3), name


@needs("numpy", "torch")
def later_writes_do_not_change_results(harness: Harness) -> None:
    """Later writes of a worker to a returned value do not change the result; arrays of a result are read-only."""
    numpy, torch = import_module("numpy"), import_module("torch")
    for rows in (3, 60_000):
        writer = harness.build(Writer, 1, {"array": numpy.zeros(rows), "tensor": torch.zeros(rows)})
        if not harness.in_process:
            with raises(ValueError, "read-only"):
                plain(writer.add(1))
        writer = harness.build(Holding, 1, rows)
        before = writer.held()
        plain(writer.add(1))
        found, after = get(before), get(writer.held())
        assert (
            found["tensor"].sum() == 0 == found["array"].sum() and after["tensor"].sum() == rows == after["array"].sum()
        )
        assert not found["array"].flags.writeable
        found["tensor"] += 5
        assert get(writer.held())["tensor"].sum() == rows
    echo = harness.build(Echo, 2, mesh=TWO)
    for rows in (1, 3, 60_000):
        assert not get(echo.rows(numpy.ones(rows))).flags.writeable
        assert not get(echo.rows({"x": numpy.ones(rows)}))["x"].flags.writeable


def _data_slices(harness: Harness, mesh: DeviceMesh, length: int) -> list[Any]:
    if harness.in_process:
        return [slice(0, length)]
    return [balanced_slice(length, mesh.data_world_size, part) for part in range(mesh.data_world_size)]


CHECKS = (
    collecting_gives_back_what_was_dispatched,
    collecting_gives_back_arrays_and_tensors,
    flatten_counts_each_data_rank_once,
    none_is_a_list_in_rank_order_or_the_bare_value,
    first_is_the_result_of_the_first_worker,
    last_pp_is_the_last_stage_once_per_data_rank,
    callable_collect_gets_results_and_mesh,
    sum_and_mean_count_each_data_rank_once,
    later_writes_do_not_change_results,
)
