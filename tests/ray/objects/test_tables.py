"""Tables on Ray: the law of tables over processes, and how many bytes move."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.remote.tables.table_programs import MESHES, Maker, Program, Rows, doubled

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import concat, get, join, map, minibatches, on, select, session, stats, submit, take  # noqa: A004  named like Python's

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.ray
_MESHES = {name: DeviceMesh.from_sizes(**MESHES[name]) for name in ("a", "c")}
_WIDTH = 64 * 1024
_NAMES = ("ids", "x", "note", "extra", "scores", "added", "in")


def _of_rows(make: Callable[[Any, Any], Any]) -> Callable[[Any], tuple[Any, int, int]]:
    """A value of the rows of an array, its number of rows, and the numbers in a row of its first column."""
    return lambda values: (make(values, values[:, 0].copy()), *values.shape)


def _of_numbers(make: Callable[[Any, Any], Any]) -> Callable[[Any], tuple[Any, int, int]]:
    """The same for types whose columns have one number in a row."""
    return lambda values: (make(values.ravel(), -values.ravel()), values.size, 1)


_TABLES = {
    "arrays": _of_rows(lambda ids, scores: {"ids": ids, "scores": scores}),
    "tensors": _of_rows(lambda ids, scores: {"ids": torch.tensor(ids), "scores": torch.tensor(scores)}),
    "nested": _of_rows(lambda ids, scores: {"ids": {"in": {"x": ids}}, "scores": scores}),
    "dataclass": _of_rows(lambda ids, scores: Rows(ids, scores)),
    "pandas": _of_numbers(lambda ids, scores: pd.DataFrame({"ids": ids, "scores": scores})),
    "polars": _of_numbers(lambda ids, scores: pl.DataFrame({"ids": ids, "scores": scores})),
    "arrow": _of_numbers(lambda ids, scores: pa.table({"ids": ids, "scores": scores})),
}
_SMALL = 64 * 1024  # of each of at most five pieces: what lies in its pickle comes as a whole
_WHOLE = ("pandas", "polars", "arrow")  # a part tells no size, or is pickled with the buffers of the whole


@pytest.fixture(scope="module")
def makers(ray_cluster: None) -> Iterator[list[Any]]:
    groups = [DeviceGroup(name, mesh.world_size, "CPU") for name, mesh in _MESHES.items()]
    with session("ray", groups=groups):
        yield [on(name, mesh).create(Maker) for name, mesh in _MESHES.items()]


def test_operations_on_lazy_values_are_those_on_their_values(makers: list[Any]) -> None:
    calls = len(stats())
    for number in range(40):
        Program(random.Random(number), makers).run()
    for one in stats()[calls:]:
        assert one.bytes_fetched == sum(one.worker_fetched.values())


def test_bytes_are_those_of_the_columns_that_are_read_for_every_type_that_has_columns(makers: list[Any]) -> None:
    rng = random.Random(4)
    maker, reader = makers
    for number in range(3 * len(_TABLES)):
        kind, make = list(_TABLES.items())[number % len(_TABLES)]
        values = np.random.default_rng(number).random((rng.randint(2, 9), rng.choice((1, 50, 3000, 20_000))))
        value, total, wide = make(values)
        made = maker.same(value)
        first = rng.randrange(total)
        part, count = rng.choice(((made, total), (take(made, slice(first, None)), total - first)))
        table, expected = rng.choice(
            (
                (part, {"ids": count * wide * 8, "scores": count * 8}),
                (select(part, "scores"), {"scores": count * 8}),
            )
        )
        submit(reader.same, table).wait()
        used = stats()[-1]
        assert used.bytes_fetched >= sum(expected.values()), (kind, values.shape, count)
        if kind not in _WHOLE:
            assert used.bytes_fetched <= sum(expected.values()) + 5 * _SMALL, (kind, values.shape, count)


def test_only_the_rows_and_columns_that_are_read_move(makers: list[Any]) -> None:
    maker, reader = makers
    whole = {"wide": torch.zeros(12, _WIDTH), "ids": list(range(12)), "other": np.zeros((12, _WIDTH))}
    made = maker.same(whole)
    made.wait()
    row = _WIDTH * 4
    for table, rows in [
        (take(select(made, "wide", "ids"), [11, 2, 2]), 2),
        (select(take(concat([made, made]), [0, 12, 1]), "wide"), 3),
        (take(join(select(made, "wide"), submit(reader.same, select(made, "ids"))), [4, 0, 4]), 2),
    ]:
        before = sum(one.driver_fetched for one in stats())
        assert get(table)["wide"].shape == (3, _WIDTH)
        assert rows * row <= sum(one.driver_fetched for one in stats()) - before < (rows + 1) * row
    calls = len(stats())
    order = []
    for batch in minibatches(select(made, "wide", "ids"), 4, seed=1):
        read = reader.same(batch)
        order += list(get(select(read, "ids"))["ids"])
    assert sorted(order) == list(range(12))
    fetched = sum(one.bytes_fetched for one in stats()[calls:])
    assert 12 * row <= fetched < 13 * row


def test_a_function_runs_where_the_rows_lie(makers: list[Any]) -> None:
    made = makers[0].by_rank([torch.zeros(_WIDTH) for _ in range(4)])
    sizes = map(made, lambda rows: [len(row) for row in rows])
    assert get(sizes) == [_WIDTH] * 4
    assert all(one.bytes_fetched < _WIDTH for one in stats() if "lambda" in one.method)
    assert get(map(makers[0].by_rank([1, 2, 3]), doubled)) == [1, 1, 2, 2, 3, 3]
