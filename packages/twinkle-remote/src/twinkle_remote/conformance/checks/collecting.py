"""Checks: collecting the workers' results."""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.call.lazy_values.get import get
from twinkle_remote.call.submit import submit
from twinkle_remote.conformance.harness import needs, plain, raises
from twinkle_remote.conformance.subjects.components import Holding, Writer
from twinkle_remote.conformance.subjects.echo import Batch, Echo, Pair, Reducer
from twinkle_remote.conformance.subjects.layouts import EIGHT, FOUR, SCATTERED, TWO
from twinkle_remote.errors import CollectError, DispatchError

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh
    from twinkle_remote.conformance.harness import Harness


def collecting_gives_back_what_was_dispatched(harness: Harness) -> None:
    """`flatten` after "slice_dp" is the identity, on every mesh, for every length and type; so it is after "slice"."""
    for name, mesh in EIGHT.items():
        echo = harness.build(Echo, 8, mesh=mesh)
        for length in (0, 1, 7, 8, 11):
            rows = list(range(length))
            batch = {"data": Batch(rows, rows), "pair": Pair(rows, rows), "tuple": tuple(rows), "note": "n"}
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


@needs("torch")
def collecting_gives_back_sparse_and_nested_tensors(harness: Harness) -> None:
    """The same for sparse and nested tensors and complex halves, whose layout and type stay; lazily as well."""
    torch = import_module("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that these are new
        _give_back_sparse_and_nested(harness, torch)


def _give_back_sparse_and_nested(harness: Harness, torch: Any) -> None:
    rows = [torch.arange(2.0 * i + 2).reshape(i + 1, 2) for i in range(5)]
    echo = harness.build(Echo, 2, mesh=TWO)
    dense = torch.arange(15.0).reshape(5, 3)
    for tensor in (
        dense.to_sparse(),
        dense.to_sparse_csr(),
        dense.to(torch.complex32),
        torch.nested.as_nested_tensor(rows),
        torch.nested.as_nested_tensor(rows, layout=torch.jagged),
    ):
        if harness.served:
            with raises(DispatchError, "Echo.rows['args'][0] is a ", "cannot be sent"):
                echo.rows(tensor)
            continue
        for back in (plain(echo.rows(tensor)), plain(echo.rows(submit(echo.rows, {"t": tensor})))["t"]):
            assert (back.layout, back.dtype, back.is_nested) == (tensor.layout, tensor.dtype, tensor.is_nested), tensor
            pairs = zip(back.unbind(), tensor.unbind(), strict=True) if back.is_nested else [(back, tensor)]
            assert all((got.to_dense() == want.to_dense()).all() for got, want in pairs), tensor
    if not harness.in_process and not harness.served:
        with raises(DispatchError, "Echo.rows", "sparse_bsr", "to_sparse_coo", "Replicate"):
            echo.rows(torch.eye(4).to_sparse_bsr((2, 2)))


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
        parts = [rows[part] for part in _data_slices(harness, mesh, len(rows))]
        want = sum(sum(part) / len(part) for part in parts) / len(parts)
        assert math.isclose(reducer.mean_of_ranks(rows), want), name


def weights_leave_ranks_without_rows_out(harness: Harness) -> None:
    """With weights by rows, the result of a data rank without rows does not count."""
    reducer = harness.build(Reducer, 8, mesh=EIGHT["dp8"])
    assert reducer.mean([1.0, 2.0, 6.0]) == {"mean": 3.0} and reducer.mean_of_rows([1.0, 2.0, 6.0]) == 3.0
    assert reducer.mean_of_rows([]) == -1e9
    with raises(CollectError, "Reducer.no_rows", "weight='rows'", "nothing was split"):
        plain(reducer.no_rows())
    if not harness.in_process:
        with raises(CollectError, "weights are at or above 0 and not all 0"):
            plain(reducer.mean([]))


def weights_may_come_from_the_results(harness: Harness) -> None:
    """A callable weight is called with the result of each data rank."""
    mesh = EIGHT["dp4 cp2"]
    data = range(harness.shares(mesh))
    weights = [rank + 1.0 for rank in data]
    got = harness.build(Reducer, 8, mesh=mesh).by_own_weight(10.0)
    assert math.isclose(got["value"], sum(10.0 * rank * weights[rank] for rank in data) / sum(weights))


def reductions_keep_the_structure(harness: Harness) -> None:
    """Dicts by the union of their keys, lists element by element; equal strings and None stay."""
    mesh = FOUR["dp2 tp2"]
    shares = harness.shares(mesh)
    got = harness.build(Reducer, 4, mesh=mesh).own_keys()
    want = {"all": shares, "in": {"deep": [1.0 * shares, 2.0 * shares]}, "name": "same", "none": None}
    assert got == {**want, **{f"rank {rank}": rank for rank in range(shares)}}


@needs("numpy", "torch")
def reductions_never_make_a_scalar_of_a_vector(harness: Harness) -> None:
    """Arrays and tensors are reduced elementwise, in a type that is wide enough."""
    mesh = FOUR["fsdp2 dp2"]
    reducer = harness.build(Reducer, 4, mesh=mesh)
    shares = harness.shares(mesh)
    middle = (shares - 1) / 2
    for kind in ("numpy.float32", "numpy.int64", "numpy.uint8", "torch.float32", "torch.int64", "torch.bfloat16"):
        got = reducer.arrays(kind)
        assert got["vector"].tolist() == [middle, middle + 2] and got["scalar"] == middle, (kind, got)
        total = plain(reducer.array_sum(kind))
        assert total.tolist() == [shares, 2 * shares, 3 * shares], (kind, total)


def reductions_refuse_what_does_not_fit(harness: Harness) -> None:
    """Strings that differ and lists of different lengths: the error names the values."""
    mesh = FOUR["dp4"]
    reducer = harness.build(Reducer, 4, mesh=mesh)
    if not harness.in_process:
        with raises(CollectError, "Reducer.strings result", "mean needs numbers", "rank 0", "rank 1"):
            plain(reducer.strings())
        with raises(CollectError, "Reducer.shapes result", "lengths are [1, 2, 3, 4]"):
            plain(reducer.shapes())


def flatten_refuses_what_does_not_join(harness: Harness) -> None:
    """Results without rows, and columns in which None cannot stand: the error states the rule and the values."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp4"])
    if not harness.in_process:
        for value, kind in ((5, "int"), ("same", "str"), (2.5, "float"), ({"loss": 1.0}, "dict"), ({}, "dict")):
            with raises(CollectError, "Echo.copies result", "flatten joins rows", f"{kind} has none"):
                plain(echo.copies(value))
        with raises(CollectError, "Echo.rows_or_none result", "flatten joins"):
            plain(echo.rows_or_none([1, 2]))
        with raises(CollectError, "Echo.deques result", "deque", "register_splitter"):
            plain(echo.deques([1, 2]))
        with raises(CollectError, "Echo.flat_scalar result", "str has none", "rank 0", "rank 1"):
            plain(echo.flat_scalar([1, 2, 3, 4]))
        with raises(CollectError, "Echo.flat_keys result", "None stands for what is missing", "dict"):
            plain(echo.flat_keys([1, 2, 3, 4], nested=True))
        assert plain(echo.flat_keys([5, 6, 7]))["rank 1"] == [None, 6, None], "None where a rank has no such column"
    assert plain(echo.nothing()) is None and plain(echo.copies(None)) is None
    assert echo.copies({"rows": [1], "note": "n"})["note"] == "n"


def tuples_of_columns_are_joined_part_by_part(harness: Harness) -> None:
    """A method that is annotated to return `tuple[X, Y]` keeps that type; unannotated, it is not guessed."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp4"])
    assert echo.two_columns([1, 2, 3, 4, 5]) == ([1, 2, 3, 4, 5], ["1", "2", "3", "4", "5"])
    if not harness.in_process:
        with raises(CollectError, "Echo.tuple_of_two", "tuple", "annotate"):
            plain(cast("Any", echo).tuple_of_two(list(range(12))))


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


def generators_are_no_results(harness: Harness) -> None:
    """A method that returns a generator: an error that says what to return instead."""
    with raises(CollectError, "Echo.returns_generator", "generator", "list"):
        plain(harness.build(Echo, 2).returns_generator())


def _data_slices(harness: Harness, mesh: DeviceMesh, length: int) -> list[Any]:
    return [slice(0, length)] if harness.in_process else list(mesh.data_slices(length))


CHECKS = (
    collecting_gives_back_what_was_dispatched,
    collecting_gives_back_arrays_and_tensors,
    collecting_gives_back_sparse_and_nested_tensors,
    flatten_counts_each_data_rank_once,
    none_is_a_list_in_rank_order_or_the_bare_value,
    first_is_the_result_of_the_first_worker,
    last_pp_is_the_last_stage_once_per_data_rank,
    callable_collect_gets_results_and_mesh,
    sum_and_mean_count_each_data_rank_once,
    weights_leave_ranks_without_rows_out,
    weights_may_come_from_the_results,
    reductions_keep_the_structure,
    reductions_never_make_a_scalar_of_a_vector,
    reductions_refuse_what_does_not_fit,
    flatten_refuses_what_does_not_join,
    tuples_of_columns_are_joined_part_by_part,
    later_writes_do_not_change_results,
    generators_are_no_results,
)
