"""What a loader reads: every kind of dataset, what is refused, and what a fingerprint sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, DatasetDict
from torch.utils.data import ConcatDataset, DistributedSampler, Subset, TensorDataset

from twinkle_data import DataLoader
from twinkle_data.sources import fingerprint_of, opened


class Squares:
    fingerprint: str

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        return index * index


class Table(Squares):
    """Reads several rows at once, as Hugging Face's datasets do."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        return [index * index for index in indices]


def test_rows_are_read_together_where_they_need_no_seeds() -> None:
    for seeds in (False, True):
        table = Table()
        assert [row for batch in DataLoader(table, batch_size=3, sample_seeds=seeds) for row in batch] == [
            index * index for index in range(9)
        ]
        assert table.asked == ([] if seeds else [[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    rows = Dataset.from_dict({"a": list(range(8))})
    assert [row["a"] for batch in DataLoader(rows, batch_size=4) for row in batch] == list(range(8))


@pytest.mark.parametrize(
    ("dataset", "advice"),
    [
        (pd.DataFrame({"a": [1, 2]}), r"dict\(frame\)"),
        (pl.DataFrame({"a": [1, 2]}), r"to_dicts\(\)"),
        (pa.table({"a": [1, 2]}), r"to_pylist\(\)"),
        ({"a": pa.array([1, 2])}, r"column 'a' .*to_pylist\(\)"),
        (DatasetDict(train=Dataset.from_dict({"a": [1, 2]})), "one split"),
        ({1, 2}, "sorted"),
        ({"a": "xy"}, "letters"),
        ({0: "ab", 1: "cd"}, "letters"),
        ({0: [1], 1: [2]}, "texts as names"),
        (iter([1, 2]), "read only once"),
        (3, "has neither"),
    ],
)
def test_what_has_no_rows_by_position_is_refused(dataset: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        DataLoader(dataset, batch_size=1)


def test_columns_have_one_length() -> None:
    with pytest.raises(ValueError, match=r"one length, got \{'a': 1, 'b': 2\}"):
        DataLoader({"a": [1], "b": [1, 2]}, batch_size=1)
    with pytest.raises(ValueError, match="one length"):
        DataLoader({}, batch_size=1)


def test_what_is_divided_already_is_refused() -> None:
    divided: Any = DistributedSampler(list(range(16)), num_replicas=2, rank=1)  # type: ignore[arg-type]  # a list
    with pytest.raises(ValueError, match="divided already"):
        DataLoader(list(range(16)), batch_size=2, sampler=divided)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [1, 3]),
        ([1, 2], [1, 2, 3]),
        ([{"a": 1}], [{"b": 1}]),
        ({"a": [1, 2]}, {"a": [1, 3]}),
        (np.arange(6), np.arange(6).reshape(2, 3)),
        (torch.arange(3), torch.arange(1, 4)),
        (Subset(Squares(), range(4)), Subset(Squares(), range(4, 8))),  # type: ignore[arg-type]  # any dataset
        (ConcatDataset([[1, 2], [3, 4]]), ConcatDataset([[1, 2], [5, 6]])),  # type: ignore[list-item]  # lists
        (TensorDataset(torch.arange(8)), TensorDataset(torch.arange(8) + 100)),
        (Dataset.from_dict({"a": [1, 2]}), Dataset.from_dict({"a": [1, 3]})),
        (list(range(100_000)), [*range(99_999), -1]),
    ],
)
def test_fingerprints_tell_apart(one: Any, other: Any) -> None:
    assert fingerprint_of(opened(one)) != fingerprint_of(opened(other))
    assert fingerprint_of(opened(one)) == fingerprint_of(opened(one))


def test_objects_may_name_themselves() -> None:
    first, second = Squares(), Squares()
    assert fingerprint_of(first) == fingerprint_of(second)
    second.fingerprint = "v2"
    assert fingerprint_of(first) != fingerprint_of(second)
    given = DataLoader(first, batch_size=2, fingerprint="mine").state_dict()
    assert given == DataLoader(second, batch_size=2, fingerprint="mine").state_dict()


def test_what_has_no_numbers_has_a_fingerprint() -> None:
    assert fingerprint_of([torch.eye(3).to_sparse()] * 4) and fingerprint_of([object(), {1: {2}}])
