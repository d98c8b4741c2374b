"""Tables on Ray: the law of tables over processes, and how many bytes move."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.remote.call.tables.table_programs import MESHES, Maker, Program, doubled

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import concat, get, map, minibatches, on, select, session, stats, take  # noqa: A004  named like Python's

if TYPE_CHECKING:
    from collections.abc import Iterator

_MESHES = {name: DeviceMesh.from_sizes(**MESHES[name]) for name in ("a", "c")}
_WIDTH = 64 * 1024


@pytest.fixture(scope="module")
def makers(ray_cluster: None) -> Iterator[list[Any]]:
    groups = [DeviceGroup(name, mesh.world_size, "CPU") for name, mesh in _MESHES.items()]
    with session("ray", groups=groups):
        yield [on(name, mesh).create(Maker) for name, mesh in _MESHES.items()]


def test_operations_on_lazy_values_are_those_on_their_values(makers: list[Any]) -> None:
    for number in range(40):
        Program(random.Random(number), makers).run()


def test_only_the_rows_and_columns_that_are_read_move(makers: list[Any]) -> None:
    maker, reader = makers
    whole = {"wide": torch.zeros(12, _WIDTH), "ids": list(range(12)), "other": np.zeros((12, _WIDTH))}
    made = maker.same(whole)
    made.wait()
    row = _WIDTH * 4
    for table, rows in [
        (take(select(made, "wide", "ids"), [11, 2, 2]), 2),
        (select(take(concat([made, made]), [0, 12, 1]), "wide"), 2),
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
