"""Fingerprints: of values, the same wherever they are, in milliseconds, and never an error."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import json
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.data.kinds_of_datasets import DATASETS, Held

from twinkle_data import DataLoader
from twinkle_data.sources.fingerprint import digest, fingerprint_of

if TYPE_CHECKING:
    from collections.abc import Callable

datasets.disable_progress_bars()


class Point(NamedTuple):
    x: int


@dataclasses.dataclass
class Record:
    x: int
    rest: list[int] = dataclasses.field(default_factory=list)


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: int) -> None:
        self.x = x


class Plain:
    def __init__(self, x: int) -> None:
        self.x = x

    @functools.cached_property
    def computed(self) -> int:
        return self.x + 1


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def tensor(x: int) -> torch.Tensor:
    return torch.tensor([[1.0, 0.0], [0.0, float(x)]])


def quantized(x: int) -> torch.Tensor:
    return torch.quantize_per_tensor(tensor(x), 0.1, 0, torch.qint8)


# Each makes a value from a number; values of one number are equal, those of others are not.
VALUES: dict[str, Callable[[int], Any]] = {
    "int": lambda x: x,
    "huge": lambda x: 10**5000 + x,
    "float": lambda x: x / 3,
    "complex": lambda x: complex(0, x),
    "str": lambda x: f"text {x}",
    "lone surrogate": lambda x: "\ud800" + str(x),
    "long text": lambda x: "a" * 200_000 + str(x),
    "bytes": lambda x: bytes([x, 0]),
    "bytearray": lambda x: bytearray([x, 0]),
    "memoryview": lambda x: memoryview(bytes([x, 0])),
    "array": lambda x: array.array("d", [x]),
    "path": lambda x: Path(f"/folder/{x}"),
    "date": lambda x: datetime.date(2000 + x, 1, 1),
    "datetime": lambda x: datetime.datetime(2000 + x, 1, 1, tzinfo=datetime.UTC),
    "timedelta": lambda x: datetime.timedelta(x),
    "decimal": lambda x: decimal.Decimal(x) / 3,
    "fraction": lambda x: fractions.Fraction(x, 7),
    "uuid": lambda x: uuid.UUID(int=x),
    "enum": lambda x: Colour(x),
    "range": range,
    "slice": lambda x: slice(x),
    "tuple": lambda x: (x,),
    "nested": lambda x: [[[[{"a": [x]}]]]],
    "dict": lambda x: {"a": {"b": x}},
    "ordered": lambda x: collections.OrderedDict(a=x),
    "counter": lambda x: collections.Counter(a=x),
    "user dict": lambda x: collections.UserDict(a=x),
    "deque": lambda x: collections.deque([x]),
    "set": lambda x: {"a", "b", "c", x},
    "frozenset": lambda x: frozenset({(x, "a")}),
    "named tuple": Point,
    "dataclass": lambda x: Record(1, [x]),
    "slots": Slotted,
    "object": Plain,
    "numpy": lambda x: np.array([1, x]),
    "numpy object": lambda x: np.array([{"a": x}, None], dtype=object),
    "numpy text": lambda x: np.array(["a", str(x)]),
    "numpy struct": lambda x: np.array([(1, x)], dtype=[("a", "i4"), ("b", "f8")]),
    "numpy date": lambda x: np.array([f"200{x}-01-01"], dtype="datetime64[D]"),
    "numpy masked": lambda x: np.ma.array([1, 2], mask=[False, x == 1]),
    "numpy scalar": lambda x: np.float16(x),
    "numpy long": lambda x: np.longdouble(x),
    "numpy void": lambda x: np.array([(1, x)], dtype="i4,f8")[0],
    "numpy strided": lambda x: np.full((1000, 500), x)[::2, ::3].T,
    "numpy empty": lambda x: np.empty((x, 0)),
    "tensor": tensor,
    "parameter": lambda x: torch.nn.Parameter(tensor(x)),
    "bfloat16": lambda x: tensor(x).bfloat16(),
    "float8": lambda x: tensor(x).to(torch.float8_e4m3fn),
    "bool tensor": lambda x: tensor(x) == 1,
    "complex tensor": lambda x: torch.complex(tensor(1), tensor(x)).conj(),
    "scalar tensor": lambda x: torch.tensor(x),
    "strided tensor": lambda x: torch.full((3000, 500), x).T,
    "sparse": lambda x: tensor(x).to_sparse(),
    "sparse twice": lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, float(x)]), (2,)),
    "csr": lambda x: tensor(x).to_sparse_csr(),
    "csc": lambda x: tensor(x).to_sparse_csc(),
    "bsr": lambda x: tensor(x).to_sparse_bsr((1, 1)),
    "quantized": quantized,
    "nested tensor": lambda x: torch.nested.nested_tensor([torch.ones(2), torch.full((3,), float(x))]),
    "jagged": lambda x: torch.nested.nested_tensor([torch.ones(2), torch.ones(3) * x], layout=torch.jagged),
    "meta": lambda x: torch.empty(x, device="meta"),
    "packed": lambda x: torch.nn.utils.rnn.pack_sequence([torch.tensor([x])]),
    "arrow scalar": lambda x: pa.scalar(x),
    "arrow struct": lambda x: pa.scalar({"a": [x]}),
    "arrow array": lambda x: pa.array([[1], [x]]),
    "arrow table": lambda x: pa.table({"a": [1, x]}),
    "pandas": lambda x: pd.DataFrame({"a": [1, x], "b": ["x", None]}),
    "series": lambda x: pd.Series([1, x]),
    "categories": lambda x: pd.Series(["a", f"b{x}"], dtype="category"),
    "timestamp": lambda x: pd.Timestamp(2000 + x, 1, 1),
    "polars": lambda x: pl.DataFrame({"a": [[1], [x]]}),
    "polars series": lambda x: pl.Series([1, x]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VALUES)
def test_a_digest_is_of_the_value(name: str) -> None:
    make = VALUES[name]
    one, again, other = make(1), make(1), make(2)
    assert digest(one) == digest(again)
    assert digest(one) != digest(other)
    assert digest([one, 3]) == digest([again, 3]) != digest([other, 3])
    assert digest({"a": one}) != digest({"a": other})


def test_what_cannot_be_digested_counts_by_its_type() -> None:
    class Broken:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]  # on purpose
            raise RuntimeError("not me")

    circle: list[Any] = [1]
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    odd: list[Any] = [
        Broken(),
        circle,
        deep,
        lambda: 0,
        iter([]),
        open,
        torch.nn.Linear(1, 1),
        object(),
        type,
        Ellipsis,
    ]
    for value in odd:
        assert len(digest(value)) == 16
        assert digest(value) == digest(value)
        loader: DataLoader[Any] = DataLoader([value] * 4, batch_size=2)
        assert len(list(loader)) == 2


def test_dicts_and_computed_attributes_do_not_depend_on_their_history() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    used = Plain(1)
    assert used.computed == 2
    assert digest([used]) == digest([Plain(1)])


def state_of(dataset: Any) -> dict[str, Any]:
    state: dict[str, Any] = DataLoader(dataset, batch_size=2).state_dict()
    return json.loads(json.dumps(state))  # type: ignore[no-any-return]  # it is one


@pytest.mark.parametrize("name", DATASETS)
def test_a_state_belongs_to_the_rows(name: str) -> None:
    make, rows = DATASETS[name], [3, 1, 4, 1, 5, 9, 2, 6]
    state = state_of(make(list(rows)))
    assert state_of(make(list(rows))) == state
    for place in range(len(rows)):
        other = [*rows[:place], 77, *rows[place + 1 :]]
        assert state_of(make(other))["fingerprint"] != state["fingerprint"], place


def test_reading_a_dataset_does_not_change_its_fingerprint() -> None:
    for make in DATASETS.values():
        dataset = make([3, 1, 4, 1, 5, 9, 2, 6])
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=2)
        if make is not DATASETS["hf generator"] and make is not DATASETS["stream of shards"]:
            list(loader)
        before = loader.state_dict()["fingerprint"]
        assert state_of(dataset)["fingerprint"] == before


def test_a_rank_a_place_or_a_device_is_no_content(tmp_path: Path) -> None:
    held = []
    for rank, host in enumerate(("one", "two")):
        (tmp_path / host).mkdir()
        file = tmp_path / host / "rows.jsonl"
        file.write_text('{"a": 1}\n')
        held.append(Held([1, 2], rank=rank, folder=str(tmp_path / host), files=[str(file), file]))
    assert fingerprint_of(held[0]) == fingerprint_of(held[1])
    (tmp_path / "two" / "rows.jsonl").write_text('{"a": 2}\n')
    other = Held([1, 2], files=[str(tmp_path / "two" / "rows.jsonl"), tmp_path / "two" / "rows.jsonl"])
    assert fingerprint_of(other) != fingerprint_of(held[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["json", "csv", "parquet", "text"])
@pytest.mark.parametrize("streaming", [False, True])
def test_files_count_by_their_contents(tmp_path: Path, kind: str, streaming: bool) -> None:
    def load(host: str, rows: list[int]) -> Any:
        folder = tmp_path / host
        folder.mkdir()
        path = str(folder / f"rows.{kind}")
        frame = pd.DataFrame({"a": rows})
        if kind == "json":
            frame.to_json(path, orient="records", lines=True)
        elif kind == "parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False)
        return datasets.load_dataset(
            kind, data_files=path, split="train", cache_dir=str(folder / "cache"), streaming=streaming
        )

    one, same, other = load("one", [1, 2, 3]), load("two", [1, 2, 3]), load("three", [1, 2, 4])
    assert state_of(one) == state_of(same)
    assert state_of(one)["fingerprint"] != state_of(other)["fingerprint"]


@pytest.mark.slow
def test_a_digest_is_cheap() -> None:
    ids = list(range(131_072))
    starts = np.arange(65, dtype=np.int32) * len(ids)
    column = pa.ListArray.from_arrays(starts, np.tile(np.array(ids), 64))
    costly: list[Any] = [
        [{"input_ids": ids, "labels": ids} for _ in range(64)],
        [np.array(ids) for _ in range(64)],
        datasets.Dataset(pa.table({"ids": column})),
        [[[[0] * 100] * 100] * 100] * 64,
        {"ids": column},
    ]
    for dataset in costly:
        begun = time.process_time()
        DataLoader(dataset, batch_size=2)
        assert time.process_time() - begun < 0.5, "a tenth of it, where nothing else runs"


def test_a_name_makes_a_digest_needless() -> None:
    class Unseen(Held):
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                raise AssertionError("nobody looks")
            return super().__getattribute__(name)

    named: DataLoader[Any] = DataLoader(Unseen([1, 2]), batch_size=1, fingerprint="mine")
    assert named.state_dict() == DataLoader(Held([8, 9]), batch_size=1, fingerprint="mine").state_dict()
