"""Minibatches: each row once an epoch, in an order that the number of rows, the seed and the epoch give."""

from __future__ import annotations

import random
from typing import Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, minibatches, on, remote_class, remote_function, session, submit
from twinkle_remote.tables.minibatches import order_of


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, rows: list[int]) -> list[int]:
        return rows


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_minibatches_hold_each_row_once_an_epoch(mode: Any) -> None:
    with session(mode, groups=[DeviceGroup("one", 3, "CPU")]):
        maker = on("one", DeviceMesh.from_sizes(dp_size=3)).create(Maker)
        check_minibatches(maker)


def check_minibatches(maker: Maker) -> None:
    for number in range(60):
        rng = random.Random(number)
        total, size, epochs = rng.randrange(20), rng.randint(1, 7), rng.randint(1, 3)
        value = list(range(total))
        shuffle, drop_last = rng.random() < 0.7, rng.random() < 0.5
        options: Any = {"epochs": epochs, "shuffle": shuffle, "drop_last": drop_last, "seed": number}
        for rows in (value, submit(maker.same, value)):
            if drop_last and total < size:
                with pytest.raises(ValueError, match="drop_last"):
                    minibatches(rows, size, **options)
                continue
            found = [list(get(batch)) for batch in minibatches(rows, size, **options)]
            each = total // size if drop_last else -(-total // size)
            assert len(found) == each * epochs
            for epoch in range(epochs):
                own = found[epoch * each : (epoch + 1) * each]
                order = list(order_of(total, number, epoch)) if shuffle else value
                assert [row for batch in own for row in batch] == order[: each * size]
                assert all(len(batch) == size for batch in own[:-1])


def test_two_batches_have_two_orders_and_a_session_makes_them_again() -> None:
    def orders() -> list[Any]:
        with session("local", groups=[DeviceGroup("one", 1, "CPU")], seed=5):
            return [list(minibatches(list(range(50)), 50)) for _ in range(2)]

    first, second = orders()
    assert first != second
    assert orders() == [first, second]
