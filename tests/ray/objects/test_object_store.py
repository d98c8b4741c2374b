"""The data plane: what is stored once, what a reader takes of it, and who sees whose writes."""

from __future__ import annotations

import os
import time
from collections import namedtuple
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import twinkle_remote as twinkle
from twinkle_mesh import DeviceMesh
from twinkle_ray.objects import tensors
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from pathlib import Path

    from twinkle_remote.sessions.telemetry import CallRecord

pytestmark = pytest.mark.ray
MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
MB = 1 << 20


@dataclass
class Rollouts:
    tokens: torch.Tensor
    texts: list[str]
    reward: np.ndarray[Any, Any]


@twinkle.remote_class()
class Holder:
    def __init__(self) -> None:
        self.kept: Any = None

    @twinkle.remote_function(dispatch="all")
    def keep(self, value: Any) -> int:
        self.kept = value
        return 0

    @twinkle.remote_function(dispatch="all")
    def total(self) -> float:
        return float(sum(float(part.sum()) for part in self.kept))

    @twinkle.remote_function(dispatch="all")
    def write(self, value: torch.Tensor, rank: int) -> float:
        if twinkle.current_worker().rank == rank:
            value.zero_()
        return float(value.sum())

    @twinkle.remote_function(dispatch="all")
    def read_only(self, value: np.ndarray[Any, Any]) -> bool:
        return not value.flags.writeable

    @twinkle.remote_function(dispatch="all")
    def wait_for(self, gate: str) -> None:
        until = time.monotonic() + 60
        while not os.path.exists(gate) and time.monotonic() < until:
            time.sleep(0.01)

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, numbers: list[int]) -> Rollouts:
        tokens = torch.tensor(numbers).repeat_interleave(1000).reshape(len(numbers), 1000)
        texts = [f"{number} " * 200 for number in numbers]
        return Rollouts(tokens, texts, np.asarray(numbers, dtype=np.float32))

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, value: Any) -> Any:
        return value

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def stored(self, rows: list[Any], values: Any) -> list[Any]:
        assert len(rows) == len(values)
        return [(row["id"], float(value.sum())) for row, value in zip(rows, values, strict=True)]

    @twinkle.remote_function(dispatch="all")
    def is_on_worker(self) -> bool:
        return tensors._on_worker

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def check(self, batch: dict[str, Rollouts]) -> list[int]:
        rollouts = batch["rollouts"]
        numbers = [int(number) for number in rollouts.reward]
        assert rollouts.tokens[:, 0].tolist() == numbers
        assert [int(text.split()[0]) for text in rollouts.texts] == numbers
        return numbers


@pytest.fixture(scope="module")
def four(ray_session: None) -> Holder:
    return twinkle.on("four", MESH).create(Holder)


@pytest.fixture(scope="module")
def two(ray_session: None) -> Holder:
    return twinkle.on("two", DeviceMesh.from_sizes(dp_size=2)).create(Holder)


def last(method: str) -> CallRecord:
    return next(record for record in reversed(twinkle.stats()) if record.method == method)


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_what_goes_to_all_is_stored_once(four: Holder, kind: str) -> None:
    array = np.ones(2 * MB // 8)
    four.keep([array if kind == "array" else torch.from_numpy(array)])
    record = last("Holder.keep")
    assert array.nbytes <= record.driver_sent < 1.01 * array.nbytes
    assert all(array.nbytes <= size < 1.01 * array.nbytes for size in record.worker_fetched.values())
    assert four.total() == [array.sum()] * 4


def test_what_is_divided_is_stored_once_and_read_by_rows(four: Holder) -> None:
    array = np.arange(4.0 * MB // 8).reshape(64, -1)
    got = four.same({"x": array, "y": torch.from_numpy(array)})
    assert np.array_equal(got["x"], array) and np.array_equal(got["y"].numpy(), array)
    record = last("Holder.same")
    assert 2 * array.nbytes <= record.driver_sent < 2.01 * array.nbytes
    assert all(array.nbytes <= size < 1.01 * array.nbytes for size in record.worker_fetched.values())


def test_a_snapshot_is_taken_of_arguments(four: Holder) -> None:
    large, small, rows = np.ones(MB), torch.ones(10), [torch.ones(MB)]
    lazy = twinkle.submit(four.keep, [large, small, *rows])
    large[:], rows[0][:] = 7, 7
    small.fill_(7)
    lazy.result(20)
    assert four.total() == [2.0 * MB + 10] * 4


def test_a_tensor_is_its_readers_own_and_an_array_is_read_only(four: Holder) -> None:
    value = torch.ones(MB)
    assert four.write(value, 1) == [MB, 0.0, MB, MB]
    assert four.write(torch.ones(8), 2) == [8.0, 8.0, 0.0, 8.0]
    assert value.sum() == MB
    assert four.read_only(np.ones(MB)) == [True] * 4


@pytest.mark.parametrize("count", [0, 1, 3, 64, 127])
def test_lazy_results_move_by_rows_and_not_through_the_driver(
    four: Holder, two: Holder, count: int, tmp_path: Path
) -> None:
    # Small answers that are here already travel on with the task; so this call is sent before they are made.
    gate = tmp_path / "gate"
    twinkle.submit(four.wait_for, str(gate))
    made = twinkle.submit(four.make, list(range(count)))
    checked = twinkle.submit(two.check, {"rollouts": made})  # type: ignore[call-overload]  # a lazy value stands for the value
    gate.touch()
    assert checked.result(60) == list(range(count))
    producer, consumer = last("Holder.make"), last("Holder.check")
    assert producer.driver_fetched == 0 and consumer.driver_sent < 4000  # what says which call it is
    if count >= 64:
        payload = producer.produced[0] + producer.produced[2]
        assert payload * 0.9 < sum(consumer.worker_fetched.values()) < 1.05 * payload


def test_a_worker_knows_that_it_is_one(two: Holder) -> None:
    assert two.is_on_worker() == [True, True]
    assert not tensors._on_worker


Pair = namedtuple("Pair", ["left", "right"])
PLAIN_ROWS = [{"id": n, "ids": [n] * 4, "more": {"x": (n, None, {1, 2}, b"a", bytearray(b"b"))}} for n in range(40)]


def test_what_stands_in_rows_arrives_as_ever(four: Holder) -> None:
    assert four.same(PLAIN_ROWS) == PLAIN_ROWS
    rows = [{**row, "pair": Pair(row["id"], 1)} for row in PLAIN_ROWS]
    assert four.same(rows) == rows
    made = twinkle.submit(four.same, PLAIN_ROWS)
    with pytest.raises(DispatchError, match="not pickled"):  # below an item of an argument
        four.same([*PLAIN_ROWS, {"lazy": made}])
    tensors = torch.arange(40.0 * 65536).reshape(40, -1)
    for mixed in (PLAIN_ROWS, [{**row, "array": np.ones(3)} for row in PLAIN_ROWS]):
        assert four.stored(mixed, tensors) == [(n, float(tensors[n].sum())) for n in range(40)]
