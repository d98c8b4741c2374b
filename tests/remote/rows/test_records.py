"""What a share keeps of the whole: type and layout; or it is refused."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

from twinkle_remote import CollectError, DispatchError
from twinkle_remote.rows.concat import concat
from twinkle_remote.rows.cut import rows_of, take
from twinkle_remote.rows.records import with_parts


class Names(list[Any]):
    scale = 1.0


class Pair(tuple[Any, ...]):
    pass


class Table(dict[str, Any]):
    pass


class Units(np.ndarray[Any, Any]):
    pass


class Marked(torch.Tensor):
    pass


class Slotted(list[Any]):
    __slots__ = ("scale",)


def _with(value: Any, **attributes: Any) -> Any:
    for name, own in attributes.items():
        setattr(value, name, own)
    return value


MAKERS: dict[str, Callable[..., Any]] = {
    "list": lambda: Names([1, 2, 3]),
    "slots": lambda: Slotted([1, 2, 3]),
    "tuple": lambda: Pair(([1, 2, 3],)),
    "dict": lambda: Table(x=[1, 2, 3], y=np.arange(3)),
    "user dict": lambda: UserDict(x=[1, 2, 3]),
    "array": lambda: np.arange(3).view(Units),
    "tensor": lambda: torch.arange(3).as_subclass(Marked),
}


def _plain(value: Any) -> Any:
    if isinstance(value, dict | UserDict):
        return {key: _plain(part) for key, part in value.items()}
    return value.tolist() if hasattr(value, "tolist") else list(value)


@pytest.mark.parametrize("name", MAKERS)
def test_subclasses_keep_their_type(name: str) -> None:
    value = MAKERS[name]()
    first, rest = take(value, range(1)), take(value, range(1, 3))
    joined = concat([first, take(value, range(1, 1)), rest])
    for part in (first, rest, joined):
        assert type(part) is type(value)
    assert _plain(joined) == _plain(value) and rows_of(first) == 1


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "slots"])
@pytest.mark.parametrize("attribute", [{"rows": [1, 2, 3]}, {"_total": 6}, {"scale": 0.5}])
def test_attributes_of_their_own_are_refused(name: str, attribute: dict[str, Any]) -> None:
    value = _with(MAKERS[name](), **attribute)
    with pytest.raises(DispatchError, match=rf"{next(iter(attribute))}=.*Replicate.*register_rows"):
        take(value, range(1))
    with pytest.raises((CollectError, DispatchError), match=next(iter(attribute))):
        concat([value, _with(MAKERS[name](), **attribute)])
    assert vars(value).items() >= attribute.items()


@dataclasses.dataclass
class Batch:
    lengths: list[int]
    note: str = "n"

    @functools.cached_property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclasses.dataclass(frozen=True)
class Frozen:
    lengths: list[int]

    @functools.cached_property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclasses.dataclass
class Derived:
    lengths: list[int]
    total: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(self.lengths)


@pytest.mark.parametrize("make", [Batch, Frozen])
def test_cached_properties_are_counted_anew(make: Callable[[list[int]], Any]) -> None:
    value = make([1, 2, 3, 4])
    assert value.tokens == 10
    parts = [take(value, range(1)), take(value, range(1, 4))]
    assert [part.tokens for part in parts] == [1, 9] and concat(parts).tokens == 10 and value.tokens == 10
    made = [make([1]), make([5])]
    assert [part.tokens for part in made] == [1, 5] and concat(made).tokens == 6


def test_what_a_dataclass_has_beside_its_fields_is_refused() -> None:
    for value in (_with(Batch([1, 2]), total=3), _with(Batch([1, 2]), _rows=[1])):
        with pytest.raises(DispatchError, match=r"Batch has .*Replicate"):
            take(value, range(1))
        assert vars(with_parts(value, [[1, 2], "n"])) == vars(value)
    derived = Derived([1, 2])
    assert derived.total == 3 and take(derived, range(1)).total == 1


def jagged(lengths: list[int], dim: int) -> Any:
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    values = torch.arange(3 * sum(lengths))
    values = values.view(3, -1) if dim == 2 else values.view(-1, 3)
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=dim)


@pytest.mark.filterwarnings("ignore")  # torch warns that these are new
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("lengths", [[5, 4, 3], [4, 4, 4, 4], [1], [0, 2, 0], [0, 0]])
def test_jagged_tensors_keep_their_ragged_dim(lengths: list[int], dim: int) -> None:
    value = jagged(lengths, dim)
    rows = [row.tolist() for row in value.unbind()]
    for start in range(len(lengths) + 1):
        parts = [take(value, range(start)), take(value, range(start, len(lengths)))]
        for part, want in zip(parts, (rows[:start], rows[start:]), strict=True):
            assert rows_of(part) == len(want) and part.values().size(2 - dim) == 3
            assert not want or [row.tolist() for row in part.unbind()] == want
        joined: Any = concat(parts)
        assert torch.equal(joined.values(), value.values()) and torch.equal(joined.offsets(), value.offsets())
    with pytest.raises(CollectError, match="ragged dims"):
        concat([jagged([1], 1), jagged([1], 2)])


@pytest.mark.filterwarnings("ignore")
def test_jagged_tensors_with_gaps_keep_their_components() -> None:
    dense = torch.arange(24.0).view(4, 6)
    value = torch.nested.narrow(dense, 1, torch.tensor([0, 1, 2, 0]), torch.tensor([2, 3, 1, 4]), layout=torch.jagged)
    rows = [row.tolist() for row in value.unbind()]
    for start in range(1, 4):
        parts = [take(value, range(start)), take(value, range(start, 4))]
        assert [row.tolist() for part in parts for row in part.unbind()] == rows
        assert [row.tolist() for row in concat(parts).unbind()] == rows


class Grid(MutableMapping[str, Any]):
    """Columns by name, rows by iteration."""

    def __init__(self, columns: Any) -> None:
        self._columns = dict(columns)

    def __getitem__(self, key: str) -> Any:
        return self._columns[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._columns[key] = value

    def __delitem__(self, key: str) -> None:
        del self._columns[key]

    def __len__(self) -> int:
        return len(self._columns)

    def keys(self) -> Any:
        return self._columns.keys()

    def __iter__(self) -> Iterator[Any]:
        return iter([{"row": row} for row in self._columns["x"]])


def test_a_mapping_that_iterates_over_rows_is_one_by_its_keys() -> None:
    value = Grid({"x": [1, 2, 3], "y": (4, 5, 6)})
    parts = [take(value, range(2)), take(value, range(2, 3))]
    assert [part["x"] for part in parts] == [[1, 2], [3]] and type(parts[0]) is Grid
    assert concat(parts)["y"] == (4, 5, 6)


def test_tuples_with_names_of_c_code_have_columns() -> None:
    value = torch.ones(4, 2).max(dim=1)
    part: Any = take(value, range(1, 3))
    assert type(part) is type(value) and part.values.shape == part.indices.shape == (2,)
    assert concat([part, part]).values.shape == (4,)


class Point(NamedTuple):
    x: list[int]


class Named(Point):
    pass


def test_subclasses_of_named_tuples_keep_their_type() -> None:
    part = take(Named([1, 2]), range(1))
    assert type(part) is Named and concat([part, take(Named([1, 2]), range(1, 2))]).x == [1, 2]
    with pytest.raises(DispatchError, match="scale=2"):
        take(_with(Named([1, 2]), scale=2), range(1))


class Quantity(np.ndarray[Any, Any]):
    """It carries a private attribute itself."""

    def __array_finalize__(self, other: Any) -> None:
        self._unit = getattr(other, "_unit", None)


def test_what_a_type_carries_by_itself_is_refused() -> None:
    value = np.arange(4).view(Quantity)
    value._unit = "kg"
    with pytest.raises(DispatchError, match="_unit='kg'"):
        take(value, range(1))


def test_outputs_of_models_are_their_columns() -> None:
    outputs: Any = importlib.import_module("transformers.modeling_outputs")
    value = outputs.CausalLMOutput(loss=torch.tensor(1.0), logits=torch.ones(4, 2))
    part = take(value, range(1, 4))
    assert type(part) is type(value) and part.logits.shape == part["logits"].shape == (3, 2) and part.loss == 1
    assert concat([take(value, range(1)), part]).logits.shape == (4, 2)


@pytest.mark.filterwarnings("ignore")  # torch calls them deprecated
def test_what_libraries_join_in_silence_is_refused() -> None:
    polars: Any = importlib.import_module("polars")
    arrow: Any = importlib.import_module("pyarrow")
    for left, right in (
        (polars.Series("a", [1]), polars.Series("b", [1])),
        (arrow.table({"x": [1]}).replace_schema_metadata({"a": "1"}), arrow.table({"x": [1]})),
        (dataset_of([1]).with_format("torch"), dataset_of([2])),
    ):
        with pytest.raises(CollectError, match="do not join"):
            concat([left, right])
    tables = [arrow.Table.from_pandas(pd.DataFrame({"x": list(range(rows))})) for rows in (1, 2)]
    assert concat(tables).to_pandas()["x"].tolist() == [0, 0, 1]


def dataset_of(rows: list[int]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"x": rows})
