"""Components that give back or reduce what they are given, and the values that they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote import current_worker, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_mesh import DeviceMesh


@dataclass
class Batch:
    """Columns of one length, and a part without rows."""

    tokens: list[Any]
    scores: list[Any]
    tag: str = "tag"


class Pair(NamedTuple):
    """Two columns."""

    left: list[Any]
    right: list[Any]


class Table(Mapping[str, Any]):
    """A mapping with a name."""

    def __init__(self, columns: Mapping[str, Any], name: str = "") -> None:
        self._columns = dict(columns)
        self.name = name

    def __getitem__(self, key: str) -> Any:
        return self._columns[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class Side(Enum):
    """A class that has a length and items, and no rows."""

    LEFT = 1
    RIGHT = 2


@dataclass
class Holder:
    """A part of a batch that may be a lazy result."""

    rows: Any
    note: str = "note"


def by_worker(
    length: int, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], device_mesh: DeviceMesh | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give worker i the argument, its index, the number of workers and whether there is a mesh."""
    return (args[0], (i, length)), {**kwargs, "meshed": device_mesh is not None}


def last_and_mesh(results: list[Any], device_mesh: DeviceMesh | None) -> Any:
    """The last result, how many there are, and how large the mesh is."""
    return results[-1], len(results), None if device_mesh is None else device_mesh.world_size


@remote_class()
class Echo:
    """Gives back what each worker was given, under every dispatch and collect."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: Any) -> Any:
        """Identity, by data rank."""
        return rows

    @remote_function(dispatch="slice", collect="flatten")
    def rows_by_worker(self, rows: Any) -> Any:
        """Identity, by worker."""
        return rows

    @remote_function(dispatch="all", collect="flatten")
    def copies(self, rows: Any) -> Any:
        """Identity of rows that every rank has."""
        return rows

    @remote_function(dispatch="all", collect="first")
    def whole(self, value: Any) -> Any:
        """Identity of the first worker."""
        return value

    @remote_function(dispatch="slice_dp")
    def given(self, *args: Any, **kwargs: Any) -> Any:
        """Return what each worker was given, by data rank."""
        return current_worker().rank, args, kwargs

    @remote_function(dispatch="slice")
    def given_by_worker(self, *args: Any, **kwargs: Any) -> Any:
        """Return what each worker was given, by worker."""
        return current_worker().rank, args, kwargs

    @remote_function(dispatch="all")
    def given_whole(self, *args: Any, **kwargs: Any) -> Any:
        """Return what each worker was given."""
        return current_worker().rank, args, kwargs

    @remote_function(dispatch=by_worker)
    def given_by_function(self, value: Any, place: Any = None, meshed: bool = False) -> Any:
        """Return what a callable dispatch made."""
        return value, place, meshed

    @remote_function(execute="first")
    def first_only(self, rows: Any) -> Any:
        """Run on the first worker alone."""
        return current_worker().rank, rows

    @remote_function(collect="first")
    def rank_of_first(self) -> Any:
        """The first worker's rank."""
        return current_worker().rank

    @remote_function()
    def ranks(self) -> Any:
        """Every worker's rank."""
        return current_worker().rank

    @remote_function(collect="last_pp")
    def ranks_of_last_stage(self) -> Any:
        """Ranks of the last stage, one for each data rank."""
        return current_worker().rank

    @remote_function(collect=last_and_mesh)
    def by_function(self) -> Any:
        """Collected by a callable."""
        return current_worker().rank

    @remote_function(dispatch="slice_dp", collect="flatten", lazy_collect=False)
    def at_once(self, rows: Any) -> Any:
        """Identity, collected on the driver."""
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", sync=True)
    def after_all(self, rows: Any) -> Any:
        """Identity, after every worker is done."""
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def doubled(self, batch: Any) -> Any:
        """Rows of a batch, twice as large; of a dict the column "rows"."""
        rows = batch["rows"] if isinstance(batch, dict) else batch
        return [2 * row for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def unequal(self, rows: list[int]) -> list[int]:
        """Each row, repeated as many times as its value, also 0 times."""
        return [row for row in rows for _ in range(row)]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def two_columns(self, rows: list[int]) -> tuple[list[int], list[str]]:
        """Two columns, as a tuple of fixed length."""
        return rows, [str(row) for row in rows]

    @remote_function(dispatch="slice_dp")
    def sizes(self, rows: Any) -> int:
        """Rows that each worker was given."""
        return len(rows)

    @remote_function(dispatch="all", collect="first")
    def type_of(self, value: Any) -> str:
        """Name of the type that arrived."""
        return type(value).__name__

    @remote_function(dispatch="all", collect="first")
    def nothing(self) -> None:
        """None."""

    @remote_function(dispatch="all", collect="first")
    def returns_generator(self) -> Any:
        """A generator."""
        return (i for i in range(3))

    @remote_function(dispatch="all", collect="first")
    def writes(self, rows: list[Any]) -> int:
        """Count rows without touching them."""
        return len(rows)


@remote_class()
class Reducer:
    """Results that are reduced."""

    @remote_function(dispatch="slice_dp", collect="sum")
    def total(self, rows: list[float]) -> float:
        """Sum of the rows."""
        return sum(rows)

    @remote_function(dispatch="slice_dp", collect="mean")
    def mean(self, rows: list[float]) -> dict[str, float]:
        """Mean of the rows; NaN without rows."""
        return {"mean": sum(rows) / len(rows) if rows else float("nan")}

    @remote_function(dispatch="slice_dp", collect="mean")
    def mean_of_rows(self, rows: list[float]) -> float:
        """Mean of the rows; a wrong value without rows."""
        return sum(rows) / len(rows) if rows else -1e9

    @remote_function(dispatch="all", collect="sum")
    def own_keys(self) -> dict[str, Any]:
        """A key of all data ranks, a key of each one, and a nested one."""
        data = data_rank()
        return {"all": 1, f"rank {data}": data, "in": {"deep": [1.0, 2.0]}, "name": "same", "none": None}

    @remote_function(dispatch="all", collect="mean")
    def arrays(self, kind: str) -> Any:
        """A vector of one kind of array or tensor."""
        data = data_rank()
        return {"vector": _vector(kind, [data, data + 2]), "scalar": float(data)}

    @remote_function(dispatch="all", collect="mean")
    def strings(self) -> str:
        """Strings that differ, which cannot be reduced."""
        return f"rank {data_rank()}"

    @remote_function(dispatch="all", collect="sum")
    def shapes(self) -> list[int]:
        """Lists of different lengths."""
        return [1] * (data_rank() + 1)


def data_rank() -> int:
    """The running worker's data rank; its rank without a mesh."""
    worker = current_worker()
    if worker.rank is None:
        return 0
    return worker.rank if worker.mesh is None else worker.mesh.data_rank(worker.rank)


def _vector(kind: str, values: Sequence[int]) -> Any:
    from importlib import import_module

    library, _, dtype = kind.partition(".")
    module = import_module(library)
    make = module.array if library == "numpy" else module.tensor
    return make(list(values), dtype=getattr(module, dtype))
