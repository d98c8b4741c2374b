"""Datasets of every kind, and fingerprints that tell them apart."""

import pickle
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, DatasetDict

from twinkle_data import Batch, DataLoader, sample_seed
from twinkle_data.sources.fingerprint import digest
from twinkle_data.sources.indexed import Columns, Objects, open_source


class Squares:
    fingerprint: str

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        return index * index


class Doubled(list[int]):
    """A list that is the user's own code."""

    def __getitem__(self, index: Any) -> Any:
        return 2 * super().__getitem__(index)


class Table(Squares):
    """Reads several rows at once, as Hugging Face's datasets do."""

    _fingerprint = "0123"

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("rows are read together")

    def __getitems__(self, indices: list[int]) -> list[dict[str, int]]:
        return [{"square": index * index} for index in indices]


class Unpicklable(Squares):
    def __reduce__(self) -> Any:
        raise TypeError("not me")


@pytest.mark.parametrize(
    ("dataset", "first"),
    [
        ([5, 6, 7], 5),
        ((5, 6, 7), 5),
        (range(5, 8), 5),
        (np.arange(5, 8), 5),
        (torch.arange(5, 8), 5),
        ({"a": np.arange(5, 8), "b": ["x", "y", "z"]}, {"a": 5, "b": "x"}),
        (torch.utils.data.TensorDataset(torch.arange(5, 8)), (torch.tensor(5),)),
        (torch.utils.data.Subset([4, 5, 6], [1, 2]), 5),  # type: ignore[arg-type]  # a list is indexed like a dataset
        (Squares, 0),
        (lambda: [5, 6], 5),
        (Table(), {"square": 0}),
        (Doubled([3, 4]), 6),
    ],
)
def test_every_kind(dataset: object, first: object) -> None:
    loader: DataLoader[Batch[Any]] = DataLoader(dataset, batch_size=2)
    batch = next(loader)
    assert len(batch) == 2
    assert batch[0] == first


class Noisy:
    """A column whose rows draw."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, float, int]:
        self.asked.append(index)
        return index, random.random(), sample_seed()


def test_what_a_column_draws_is_the_samples_own() -> None:
    rows = Dataset.from_dict({"a": list(range(8))})
    drawing = rows.with_transform(lambda batch: {"a": [(row, random.random()) for row in batch["a"]]})
    made: list[Any] = [Noisy, lambda: drawing["a"]]
    for make in made:
        drawn = []
        for seed in range(2):
            random.seed(seed)
            loader = DataLoader({"x": make(), "y": list(range(8))}, batch_size=4)
            again = DataLoader({"x": make(), "y": list(range(8))}, batch_size=2)
            drawn.append([*next(loader), *next(loader)])
            again.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 4})
            assert [*next(again), *next(again)] == drawn[-1][4:]
        assert drawn[0] == drawn[1]
    noisy = Noisy()
    loader = DataLoader({"x": noisy}, batch_size=4)
    assert len(list(loader)) == 2
    assert noisy.asked == list(range(8)), "a sample is read once"


def test_columns_of_libraries_are_read_for_their_fingerprint() -> None:
    made: list[Any] = [list, np.array, pd.Series, lambda rows: Dataset.from_dict({"a": rows})["a"]]
    for make in made:
        one, other = (Columns({"a": make(rows)}) for rows in ([1, 2, 3], [1, 2, 4]))
        assert one.plain
        assert one.fingerprint != other.fingerprint


def test_a_series_is_read_by_position() -> None:
    frame = pd.DataFrame({"text": list("abcd"), "place": [0, 1, 2, 3]}, index=[2, 0, 3, 1])
    assert list(next(DataLoader(frame["text"], batch_size=4))) == list("abcd")
    for columns in (dict(frame), {"text": frame["text"], "place": np.arange(4)}):
        rows = next(DataLoader(columns, batch_size=4))
        assert [(row["text"], row["place"]) for row in rows] == list(zip("abcd", range(4), strict=True))
    assert list(next(DataLoader(frame["text"][frame["place"] > 1], batch_size=2))) == ["c", "d"]


@pytest.mark.parametrize(
    ("dataset", "advice"),
    [
        (pd.DataFrame({"a": [1, 2]}), r"DataFrame gives columns; use dict\(frame\)"),
        (pa.table({"a": [1, 2], "b": [3, 4]}), r"Table gives columns; use table.to_pylist\(\)"),
        (DatasetDict(train=Dataset.from_dict({"a": [1, 2]})), "DatasetDict holds splits; use one of them"),
    ],
)
def test_what_has_no_rows_by_position_is_refused(dataset: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        DataLoader(dataset, batch_size=1)


def test_columns_have_one_length() -> None:
    with pytest.raises(ValueError, match=r"one length, got \{'a': 1, 'b': 2\}"):
        Columns({"a": [1], "b": [1, 2]})
    with pytest.raises(ValueError, match="no column"):
        Columns({})


@pytest.mark.parametrize("dataset", [3, "text", b"bytes", object()])
def test_what_is_no_dataset(dataset: object) -> None:
    with pytest.raises(TypeError, match="a list"):
        open_source(dataset)


def test_what_a_callable_built_is_built_again_elsewhere() -> None:
    built = open_source(Unpicklable)
    copy = pickle.loads(pickle.dumps(built))
    assert copy.read(3) == 9
    local = open_source(lambda: Squares())
    assert isinstance(local, Objects)
    assert pickle.loads(pickle.dumps(local)).read(3) == 9


@pytest.mark.parametrize(
    "pair",
    [
        ([1, 2], [1, 3]),
        ([1, 2], [1, 2.0]),
        ([True], [1]),
        (["ab", "c"], ["a", "bc"]),
        ([b"a"], ["a"]),
        ([[1], [2]], [[1, 2], []]),
        ({"a": 1}, {"b": 1}),
        (np.arange(3), np.arange(3.0)),
        (np.arange(6), np.arange(6).reshape(2, 3)),
        (torch.arange(3), torch.arange(1, 4)),
        (np.float32(1), [np.float32(1)]),
        (Squares(), Table()),
        (None, 0),
    ],
)
def test_digests_tell_apart(pair: tuple[object, object]) -> None:
    assert digest(pair[0]) != digest(pair[1])
    assert digest(pair[0]) == digest(pair[0])


@pytest.mark.slow
def test_digests_are_the_same_everywhere() -> None:
    value = "[{'a': [1, 2.5, None], 'b': 'x'}, b'y', np.arange(3), torch.ones(2, dtype=torch.bfloat16), object()]"
    program = f"import numpy as np, torch; from twinkle_data.sources.fingerprint import digest; print(digest({value}))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert told.stdout.strip() == digest(eval(value, {"np": np, "torch": torch, "object": object}))
    assert digest(np.arange(3, dtype=">i4")) == digest(np.arange(3, dtype="<i4"))


def test_objects_may_name_themselves() -> None:
    first, second = Squares(), Squares()
    assert Objects(first).fingerprint == Objects(second).fingerprint
    second.fingerprint = "v2"
    assert Objects(first).fingerprint != Objects(second).fingerprint
    given = DataLoader(first, batch_size=2, fingerprint="mine").state_dict()
    assert given == DataLoader(second, batch_size=2, fingerprint="mine").state_dict()


def test_large_lists_are_probed() -> None:
    rows = list(range(100_000))
    assert open_source(rows).fingerprint != open_source([*rows[:-1], -1]).fingerprint


class Together:
    """A dataset whose `__getitems__` answers in a form of its own."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> Any:
        return self.answer(indices)


ANSWERS: dict[str, Any] = {
    "too few": lambda indices: [index for index in indices if index % 3],
    "none": lambda indices: [],
    "too many": lambda indices: [*indices, 0],
    "columns": lambda indices: {"a": indices, "b": indices},
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("sample_seeds", [True, False])
def test_an_answer_that_is_no_list_of_the_samples_is_refused(kind: str, batch_size: int, *, sample_seeds: bool) -> None:
    with pytest.raises((TypeError, ValueError), match="__getitems__"):
        list(DataLoader(Together(ANSWERS[kind]), batch_size=batch_size, sample_seeds=sample_seeds))


@pytest.mark.parametrize("answer", [list, tuple, np.array, iter, lambda indices: (index for index in indices)])
def test_samples_that_come_together_in_any_sequence_are_right(answer: Any) -> None:
    assert [int(row) for batch in DataLoader(Together(answer), batch_size=4) for row in batch] == list(range(8))
