"""Reductions against plain loops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from twinkle_remote import CollectError, register_rows
from twinkle_remote.rows.reduce import reduce

NUMBERS = st.floats(-1e6, 1e6) | st.integers(-1000, 1000)
WEIGHTS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=6, max_size=6).filter(any)


def loop(how: str, values: list[float], weights: list[float] | None) -> float:
    total = 0.0
    weight = 0.0
    for i, value in enumerate(values):
        share = 1.0 if weights is None else weights[i]
        total += value * share
        weight += share
    return total / weight if how == "mean" else total


@given(
    how=st.sampled_from(["sum", "mean"]),
    table=st.lists(st.dictionaries(st.sampled_from("abcd"), NUMBERS), min_size=1, max_size=6),
    weights=st.none() | WEIGHTS,
)
def test_dicts_are_reduced_by_the_union_of_their_keys(
    how: str, table: list[dict[str, float]], weights: list[float] | None
) -> None:
    shares = None if weights is None else weights[: len(table)]
    if shares is not None and not any(shares):
        with pytest.raises(CollectError, match="not all 0"):
            reduce(how, table, shares, "result")
        return
    got = reduce(how, table, shares, "result")
    counted = [i for i in range(len(table)) if shares is None or shares[i]]
    assert got.keys() == {key for i in counted for key in table[i]}
    for key, value in got.items():
        having = [i for i in counted if key in table[i]]
        want = loop(how, [table[i][key] for i in having], None if shares is None else [shares[i] for i in having])
        assert math.isclose(value, want, rel_tol=1e-9, abs_tol=1e-6)


@given(
    how=st.sampled_from(["sum", "mean"]),
    rows=st.lists(st.lists(st.integers(-50, 50), min_size=3, max_size=3), min_size=1, max_size=6),
    kind=st.sampled_from(["float32", "float64", "float16", "int64", "int8", "bfloat16"]),
    weights=st.none() | WEIGHTS,
)
def test_arrays_and_tensors_are_reduced_elementwise(
    how: str, rows: list[list[int]], kind: str, weights: list[float] | None
) -> None:
    shares = None if weights is None else [weight + 1 for weight in weights[: len(rows)]]
    want = [loop(how, [float(row[i]) for row in rows], shares) for i in range(3)]
    tolerance = 2.0 if kind in ("bfloat16", "float16") else 1e-3
    tensors = [torch.tensor(row, dtype=getattr(torch, kind)) for row in rows]
    got = reduce(how, [{"in": [tensor]} for tensor in tensors], shares, "result")["in"][0]
    assert got.shape == (3,) and np.allclose(got.double().numpy(), want, atol=tolerance)
    if kind != "bfloat16":
        arrays = [np.array(row, dtype=kind) for row in rows]
        got = reduce(how, arrays, shares, "result")
        assert got.shape == (3,) and np.allclose(got.astype(float), want, atol=tolerance)


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([np.array([200], "uint8")] * 4, 800),
        ([np.array([True])] * 4, 4),
        ([torch.tensor([200], dtype=torch.uint8)] * 4, 800),
        ([torch.tensor([True])] * 4, 4),
        ([np.float16(40000)] * 4, np.inf),
    ],
)
def test_sums_do_not_wrap_around(values: list[Any], want: float) -> None:
    with np.errstate(over="ignore"):
        assert reduce("sum", values, None, "result").item() == want
        assert reduce("mean", values, None, "result").item() == values[0].item()


def test_types_stay() -> None:
    assert reduce("mean", [torch.zeros(2, dtype=torch.bfloat16)] * 2, None, "r").dtype == torch.bfloat16
    assert reduce("mean", [np.zeros(2, "float16")] * 2, None, "r").dtype == np.float16
    assert reduce("sum", [np.zeros(2, "int32")] * 2, None, "r").dtype == np.int64
    assert reduce("sum", [3, 4], None, "r") == 7 and type(reduce("sum", [3, 4], None, "r")) is int
    assert reduce("mean", [(1, [2.0]), (3, [4.0])], None, "r") == (2.0, [3.0])
    assert reduce("sum", [{"name": "x", "none": None}] * 2, None, "r") == {"name": "x", "none": None}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b"], "mean needs numbers, arrays or tensors that are alike, got str 'a', str 'b'"),
        ([[1], [1, 2]], r"lengths are \[1, 2\]"),
        ([{"a": 1}, 2], "got dict, int"),
        ([np.zeros(2), np.zeros(3)], r"shapes are \[\(2,\), \(3,\)\]"),
        ([1, None], "mean of NoneType, int"),
        ([{"a": {"b": "x"}}, {"a": {"b": "y"}}], r"result\['a'\]\['b'\]: mean needs numbers"),
    ],
)
def test_what_cannot_be_reduced_says_why(values: list[Any], message: str) -> None:
    with pytest.raises(CollectError, match=message):
        reduce("mean", values, None, "result")


def test_weights_below_zero_are_refused() -> None:
    with pytest.raises(CollectError, match=r"got \[1\.0, -1\.0\]"):
        reduce("sum", [1, 2], [1.0, -1.0], "result")


@dataclass
class Ragged:
    """Rows of several numbers each: its columns are not cut or reduced one by one."""

    numbers: list[int]
    counts: list[int]

    def __len__(self) -> int:
        return len(self.counts)


def test_a_dataclass_with_a_row_type_is_not_reduced_by_column() -> None:
    register_rows(Ragged, take=lambda value, rows: value, concat=lambda values: values[0])
    with pytest.raises(CollectError, match="Ragged has rows"):
        reduce("mean", [Ragged([1, 2], [2]), Ragged([3, 4], [2])], None, "result")
