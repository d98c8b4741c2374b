"""Checks: collecting the workers' results."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.conformance.harness import checks_of, needs, plain
from tests.conformance.subjects.components import Holding
from tests.conformance.subjects.echo import Batch, Echo, Growing, Hoard, Pair, grow
from tests.conformance.subjects.layouts import EIGHT, FOUR, SCATTERED, TWO

from twinkle_remote import get, submit

if TYPE_CHECKING:
    from tests.conformance.harness import Harness


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


@needs("numpy", "torch")
def later_writes_do_not_change_results(harness: Harness) -> None:
    """Later writes of a worker to a returned value do not change the result; arrays of a result are read-only."""
    numpy = import_module("numpy")
    for rows in (3, 60_000):
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


def writes_are_seen_by_nobody_else(harness: Harness) -> None:
    """A value that a caller or a worker writes to is its own: nobody else sees it, in any backend."""
    kinds: tuple[type[Any], ...] = (list,) if harness.served else (list, Growing)
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


CHECKS = checks_of(globals())
