"""What a dataset or a column is: values in place of wrappers, and refusals that say what to use."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from twinkle_data import DataLoader, Mixture


def rows_of(dataset: Any, **options: Any) -> list[Any]:
    return [row for batch in DataLoader(dataset, batch_size=1, **options) for row in batch]


VALUES: list[list[Any]] = [
    [0, 1, -7],
    [True, False],
    [0.5, float("inf")],
    ["", "text"],
    [b"", b"bytes"],
    [[1, 2], [], [3]],
    [{"a": 1, "b": ["x"]}, {"a": None, "b": []}],
    [1, None, 2],
    [datetime.date(2020, 1, 2), datetime.date(2021, 1, 2)],
]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("as_column", [False, True])
def test_columns_of_libraries_give_values(values: list[Any], as_column: bool) -> None:
    made = [pa.array(values), pa.chunked_array([values[:1], values[1:]]), pa.array(values)[:], pl.Series(values)]
    if isinstance(values[0], str):
        made.append(pa.array(values).dictionary_encode())
    for column in made:
        rows = rows_of({"a": column} if as_column else column)
        got = [row["a"] for row in rows] if as_column else rows
        assert got == values
        assert [type(row) for row in got] == [type(value) for value in values]
    copied = pickle.loads(pickle.dumps(DataLoader({"a": made[1]}, batch_size=1)))
    assert [row["a"] for batch in copied for row in batch] == values


def test_a_dict_of_rows_by_number_is_a_dataset() -> None:
    assert rows_of({0: "a", 1: "b"}) == ["a", "b"]
    assert rows_of({1: "b", 0: "a"}) == ["a", "b"]
    assert rows_of({np.int64(0): [1], np.int64(1): [2]}) == [[1], [2]]
    assert sorted(rows_of({number: str(number) for number in range(9)}, shuffle=True)) == list("012345678")
    state = DataLoader({0: "a", 1: "b"}, batch_size=1).state_dict()
    DataLoader({1: "b", 0: "a"}, batch_size=1).load_state_dict(state)
    with pytest.raises(ValueError, match="fingerprint"):
        DataLoader({0: "a", 1: "c"}, batch_size=1).load_state_dict(state)


REFUSED: dict[str, tuple[Any, str]] = {
    "numbers with a gap": ({0: "a", 2: "b"}, "row 1 is missing"),
    "numbers from one": ({1: "a", 2: "b"}, "row 0 is missing"),
    "numbers of columns": (dict(pd.DataFrame([[1, 2], [3, 4]])), "columns"),
    "numbers of series": ({0: pl.Series([1]), 1: pl.Series([2])}, "columns"),
    "numbers and texts": ({0: [1], "a": [2]}, "column 0"),
    "bools": ({True: "a"}, "column"),
    "text": ({"prompt": "xyz"}, "column 'prompt' of the dataset is a str"),
    "bytes": ({"prompt": b"xyz"}, "is a bytes"),
    "a name twice": (dict(pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"])), "same name"),
    "frame": ({"a": pl.DataFrame({"b": [1]})}, "DataFrame"),
    "table": ({"a": pa.table({"b": [1]})}, "Table"),
    "set": ({"a": {1, 2}}, "no rows by position"),
    "dict": ({"a": {0: 1}}, "no rows by position"),
    "none": ({"a": None}, "NoneType"),
    "number": ({"a": 3}, "is a int"),
    "generator": ({"a": iter([1])}, "no length"),
    "no dimension": ({"a": np.array(3)}, "no dimension"),
    "scalar": ({"a": torch.tensor(3)}, "no dimension"),
    "array without dimension": (np.array(3), "without dimensions"),
    "tensor without dimension": (torch.tensor(3), "without dimensions"),
    "polars": (pl.DataFrame({"a": [1, 2]}), r"frame.to_dicts\(\)"),
    "lazy": (pl.LazyFrame({"a": [1, 2]}), "collect"),
    "pandas": (pd.DataFrame({"a": [1, 2]}), r"dict\(frame\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_dataset_is_refused_by_name(name: str) -> None:
    dataset, said = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=said):
        DataLoader(dataset, batch_size=1)


@pytest.mark.parametrize("weight", [float("inf"), float("nan"), 1e308, 0, -1])
def test_weights_of_a_mixture_are_finite(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        Mixture({"a": [1], "b": [2]}, {"a": weight, "b": 1e308})
