"""Datasets of every kind, each made of the same rows: lists, columns, torch's, Hugging Face's, streams."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import torch
from torch.utils.data import ChainDataset, ConcatDataset, Dataset, IterableDataset, StackDataset, Subset, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

datasets.disable_progress_bars()


class Held(Dataset[int]):
    """A dataset of the user's own: its rows count, its rank, place and log do not."""

    def __init__(self, rows: Any, *, rank: int = 0, folder: str = "/tmp/here", files: Any = ()) -> None:
        self.rows = rows
        self.rank = rank
        self.folder = folder
        self.files = files
        self.log: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.log.append(index)
        return self.rows[index]


class Streamed(IterableDataset[int]):
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def generated(rows: Any) -> Iterator[Any]:
    yield from rows


def hf(rows: list[int]) -> Any:
    return datasets.Dataset.from_dict({"a": rows})


# Each makes a dataset of rows; equal rows give one state, other rows another.
DATASETS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "numpy": np.array,
    "tensor": torch.tensor,
    "pandas": lambda rows: pd.Series(rows, index=range(len(rows))[::-1]),  # it is read by position, not by label
    "polars": pl.Series,
    "columns": lambda rows: {"a": rows, "b": np.array(rows), "c": pd.Series(rows, rows), "d": pl.Series(rows)},
    "column of an object": lambda rows: {"a": Held(rows), "b": rows},
    "hugging face": hf,
    "hf column": lambda rows: {"a": hf(rows)["a"]},
    "hf mapped": lambda rows: hf(rows).select(range(len(rows))).with_format("torch"),
    "hf joined": lambda rows: datasets.concatenate_datasets([hf(rows[:3]), hf(rows[3:])]),
    "subset": lambda rows: Subset(Held(list(range(100))), rows),
    "subset of rows": lambda rows: Subset(rows, range(len(rows))),  # type: ignore[arg-type]  # a list is a dataset
    "tensors": lambda rows: TensorDataset(torch.tensor(rows)),
    "concat": lambda rows: ConcatDataset([Held(rows[:3]), Held(rows[3:])]),
    "stack": lambda rows: StackDataset(a=rows, b=rows),  # type: ignore[arg-type]  # the same
    "object": Held,
    "built": lambda rows: lambda: Held(rows),
    "object of arrays": lambda rows: Held(np.array(rows)),
    "object of a frame": lambda rows: Held(pl.Series(rows)),
    "nested objects": lambda rows: Held(Held(rows)),
    "stream": Streamed,
    "chain": lambda rows: ChainDataset([Streamed(rows[:3]), Streamed(rows[3:])]),
    "hf stream": lambda rows: hf(rows).to_iterable_dataset(num_shards=2),
    "hf mapped stream": lambda rows: hf(rows).to_iterable_dataset(num_shards=2).map(dict).filter(bool),
    "hf generator": lambda rows: datasets.IterableDataset.from_generator(generated, gen_kwargs={"rows": tuple(rows)}),
    "generator": lambda rows: functools.partial(generated, rows),
    "closure": lambda rows: lambda: iter(rows),
}

STREAMS = ("stream", "chain", "generator", "closure", "hf stream", "hf mapped stream", "hf generator")
OWN = (
    *("object", "built", "object of arrays", "object of a frame", "nested objects", "concat", "column of an object"),
    "subset",
)
"""Datasets of the program's own, of which the fingerprint sees no rows."""


def value_of(row: Any) -> int:
    """The number that a row was made of, whatever holds it."""
    while not isinstance(row, (int, np.integer)):
        if isinstance(row, dict):
            row = row["a"]
        elif isinstance(row, torch.Tensor):
            row = row.item()
        else:
            (row,) = row
    return int(row)
