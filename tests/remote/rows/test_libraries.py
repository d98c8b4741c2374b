"""Values of other libraries: rows are cut and come back as what they were; what is of no known type is refused."""

from __future__ import annotations

import array
import importlib
import subprocess
import sys
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.made_calls import made_call

from twinkle_remote import CollectError, DispatchError, Replicate
from twinkle_remote.backends.memory import Memory
from twinkle_remote.call.collect import combine, combined_by, ranks_read
from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.rows.concat import concat, concat_results
from twinkle_remote.rows.cut import rows_of, take
from twinkle_remote.rows.records import parts_of, rebuild

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh

BatchEncoding: Any = importlib.import_module("transformers").BatchEncoding


def _frame(rows: int) -> Any:
    frame = pd.DataFrame({"x": np.arange(rows), "s": [f"row {i}" for i in range(rows)]})
    frame["kind"] = pd.Categorical(["odd" if i % 2 else "even" for i in range(rows)], categories=["odd", "even"])
    return frame


def _dataset(rows: int) -> Any:
    features = datasets.Features({"x": datasets.Value("int32"), "s": datasets.Value("string")})
    return datasets.Dataset.from_dict({"x": list(range(rows)), "s": [str(i) for i in range(rows)]}, features=features)


def _table(rows: int) -> Any:
    return pa.table({"x": pa.array(range(rows), pa.int16()), "s": pa.array(map(str, range(rows)), pa.string())})


def _formatted(rows: int) -> Any:
    made = _dataset(rows).with_format("numpy", columns=["x"])
    return made.select(list(reversed(range(rows))))


MAKERS: dict[str, Callable[[int], Any]] = {
    "pandas frame": _frame,
    "pandas frame, own index": lambda rows: _frame(rows).set_index("s"),
    "pandas series": lambda rows: pd.Series(np.arange(rows, dtype="int8"), name="x"),
    "polars frame": lambda rows: pl.DataFrame({"x": range(rows)}, schema={"x": pl.UInt8}),
    "polars series": lambda rows: pl.Series("x", list(range(rows)), dtype=pl.Int16),
    "arrow table": _table,
    "dataset": _dataset,
    "dataset, formatted": _formatted,
    "column of a dataset": lambda rows: _dataset(rows)["s"],
    "column in a column": lambda rows: datasets.Dataset.from_dict(
        {"at": [{"x": i} for i in range(rows)]}, features=datasets.Features({"at": {"x": datasets.Value("int32")}})
    )["at"]["x"],
    "range": lambda rows: range(3, 3 + 2 * rows, 2),
    "encoding": lambda rows: BatchEncoding({"ids": [[i] for i in range(rows)], "mask": torch.ones(rows, 2)}),
    "user dict": lambda rows: UserDict(x=list(range(rows)), note="n"),
    "default dict": lambda rows: defaultdict(list, x=list(range(rows))),
    "proxy": lambda rows: types.MappingProxyType({"x": list(range(rows)), "y": np.arange(rows)}),
    "chain": lambda rows: ChainMap({"x": list(range(rows))}),
}
NAMES = st.sampled_from(list(MAKERS))


def alike(left: Any, right: Any) -> bool:
    """Equal in type, columns, dtypes, index and every element."""
    if type(left) is not type(right):
        return False
    if isinstance(left, pd.DataFrame | pd.Series):
        check = "frame" if isinstance(left, pd.DataFrame) else "series"
        getattr(pd.testing, f"assert_{check}_equal")(left, right)
        return True
    if isinstance(left, pl.DataFrame | pl.Series):
        return bool(left.equals(right, null_equal=True)) and str(left) == str(right)
    if isinstance(left, datasets.Dataset):
        # A selection sorts the names of formatted columns, which have the table's order all the same.
        left_format, right_format = ({**each.format, "columns": set(each.format["columns"])} for each in (left, right))
        same = (left.features, left.column_names, left_format) == (right.features, right.column_names, right_format)
        return bool(same and left.with_format(None).to_list() == right.with_format(None).to_list())
    if isinstance(left, np.ndarray | torch.Tensor):
        return bool(left.dtype == right.dtype and left.tolist() == right.tolist())
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    return bool(left == right)


@given(data=st.data(), rows=st.integers(0, 9), name=NAMES)
def test_collecting_what_was_dispatched_gives_it_back(
    data: st.DataObject, rows: int, name: str, meshes: st.SearchStrategy[DeviceMesh]
) -> None:
    mesh = data.draw(meshes)
    ranks = list(range(mesh.world_size))
    made = MAKERS[name](rows)
    value: Any = {"batch": made} if data.draw(st.booleans()) else made
    spec = FunctionSpec(dispatch="slice_dp", collect="flatten")
    shares = dispatch(made_call("Echo.rows", spec, ranks, mesh, value=value), Memory().put)
    assert shares.real == rows
    sent = [shares.arguments[index][0][0] for index in shares.of_rank]
    read = ranks_read(spec, ranks, mesh, each=bool(shares.each))
    back = combine(
        combined_by(spec, ranks, mesh, "Echo.rows"),
        [sent[rank] for rank in read],
    )
    assert alike(back, value)
    assert alike(made, MAKERS[name](rows))


@pytest.mark.parametrize("name", MAKERS)
def test_empty_slices_keep_their_type(name: str) -> None:
    value = MAKERS[name](4)
    assert rows_of(value) == 4 and rows_of(take(value, range(2, 2))) == 0
    assert type(take(value, range(2, 2))) is type(value)
    assert alike(
        concat([take(value, range(0)), take(value, range(3)), take(value, range(3, 3)), take(value, range(3, 4))]),
        value,
    )


def test_what_does_not_join_says_so() -> None:
    for left, right in (
        (_frame(2), _frame(2).rename(columns={"x": "y"})),
        (pl.DataFrame({"x": [1]}), pl.DataFrame({"y": [1]})),
        (pa.table({"x": [1]}), pa.table({"x": ["a"]})),
        (_dataset(1), datasets.Dataset.from_dict({"x": ["a"], "s": [["b"]]})),
        (_frame(2), _table(2)),
    ):
        with pytest.raises(CollectError, match=r"do not join|one type"):
            concat([left, right])


def test_the_encodings_of_a_fast_tokenizer_are_cut_with_their_rows() -> None:
    tokenizers: Any = importlib.import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = importlib.import_module("transformers").PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="a")
    batch = fast(["a b", "b", "a a a"], padding=True, return_tensors="np")
    part = take(batch, range(1, 3))
    assert type(part) is BatchEncoding and part.is_fast and part.tokens(0)[0] == "b" == batch.tokens(1)[0]
    whole = concat([take(batch, range(1)), part])
    assert alike(whole, batch) and [whole.tokens(i) for i in range(3)] == [batch.tokens(i) for i in range(3)]
    with pytest.raises(DispatchError, match=r"value\['input_ids'\] has 3.*encodings of the tokenizer'\] has 1"):
        rows_of(fast("a b a"))


class Tagged(MutableMapping[str, Any]):
    """A mapping over a dict."""

    def __init__(self, items: Mapping[str, Any], tag: str = "none") -> None:
        self._items = dict(items)
        self.tag = tag

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._items[key] = value

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Odd(Tagged):
    """A mapping that is made of something else."""

    def __init__(self, path: int) -> None:
        super().__init__({"x": [1, 2]}, str(path))


class Copying(Tagged):
    """A mapping that keeps copies of what it is given."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__({key: list(value) for key, value in items.items()})


def test_mappings_of_any_type_are_made_again_of_their_items() -> None:
    value = Tagged({"x": [1, 2, 3], "y": np.arange(3)})
    part = take(value, range(1, 3))
    assert type(part) is Tagged and part["x"] == [2, 3] and part["y"].tolist() == [1, 2]
    assert value["x"] == [1, 2, 3] and len(value["y"]) == 3
    joined = concat([take(value, range(1)), part])
    assert type(joined) is Tagged and joined["x"] == [1, 2, 3]
    for odd in (Odd(1), Copying({"x": [1, 2]})):
        with pytest.raises(DispatchError, match=r"Replicate.*register_rows"):
            take(odd, range(1))
    for kind in (OrderedDict, UserDict, Counter):
        made: Any = kind({"x": [1, 2]})
        assert type(take(made, range(1))) is kind and made["x"] == [1, 2]
    assert rebuild(types.MappingProxyType({"a": 1}), [2]) == {"a": 2} and parts_of(ChainMap({"a": 1})) == {"a": 1}


class Colour(Enum):
    RED = 1
    BLUE = 2


class Rows:
    """It has a length and items by index."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index


def call(value: Any, **options: Any) -> Any:
    spec = FunctionSpec(dispatch="slice_dp", **options)
    shares = dispatch(made_call("Echo.given", spec, [0, 1], value=value, rows=[1, 2]), Memory().put)
    return [shares.arguments[index][0][0] for index in shares.of_rank]


@pytest.mark.parametrize("value", [Rows(), deque([1, 2]), array.array("d", [1.0, 2.0]), torch.nn.Sequential()])
def test_containers_of_no_known_type_are_refused(value: Any) -> None:
    name = type(value).__name__
    for held in (value, {"deep": {"in": value}}):
        with pytest.raises(DispatchError, match=rf"value.*{name}, .*Replicate.*split=.*register_rows\({name}"):
            call(held)
    assert call(Replicate(value)) == [value, value]
    assert call({"deep": Replicate(value)}) == [{"deep": value}] * 2
    assert call(value, replicate=("value",)) == call(value, split=("rows",)) == [value, value]


@pytest.mark.parametrize(
    "value",
    [
        "text",
        b"bytes",
        bytearray(b"x"),
        memoryview(b"abc"),
        memoryview(bytearray(4))[1:3],
        Colour,
        Colour.RED,
        5,
        None,
        int,
        np.dtype("int8"),
    ],
)
def test_what_has_no_rows_goes_whole(value: Any) -> None:
    assert call(value) == [value, value]


@pytest.mark.parametrize("view", [np.zeros((2, 3), "int16").data, memoryview(bytes(8)).cast("i")])
def test_views_of_numbers_are_refused(view: Any) -> None:
    with pytest.raises(DispatchError, match=r"value.*memoryview, .*Replicate.*split="):
        call({"deep": view})
    with pytest.raises(CollectError, match="memoryview"):
        concat_results([view, view], "result")
    assert call(Replicate(view)) == [view, view]


@pytest.mark.parametrize("package", ["twinkle_remote", "twinkle"])
def test_no_library_is_loaded_before_a_value_of_it_is_seen(package: str) -> None:
    program = f"""
        import sys, {package}
        import twinkle_remote.rows.cut as split
        split.rows_of({{"a": [1, 2], "b": range(2)}})
        heavy = {{"datasets", "numpy", "pandas", "polars", "pyarrow", "torch", "transformers"}}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    source = "\n".join(line.strip() for line in program.splitlines())
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
