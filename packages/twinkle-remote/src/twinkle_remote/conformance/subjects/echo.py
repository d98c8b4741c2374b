"""Components that give back or reduce what they are given, and the values that they are given."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote.component.decorators import remote_class, remote_function
from twinkle_remote.context import current_worker

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


class Strip:
    """A container of an unknown type, until a splitter is registered."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)


class StripSplitter:
    """Rows of strips."""

    def length(self, value: Strip) -> int | None:
        """Number of items."""
        return len(value.items)

    def slice(self, value: Strip, start: int, stop: int) -> Strip:
        """Items [start, stop)."""
        return Strip(value.items[start:stop])

    def concat(self, values: Sequence[Strip]) -> Strip:
        """All items."""
        return Strip([item for value in values for item in value.items])


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


def first_rows(value: Any) -> float:
    """Weight of a result: its field "weight"."""
    return float(value["weight"])


@remote_class()
class Echo:
    """Gives back what each worker was given, under every dispatch and collect."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: Any) -> Any:
        """Identity, by data rank."""
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def tuples(self, rows: Any) -> tuple[Any, ...]:
        """Identity of a tuple of rows, by data rank."""
        return tuple(rows)

    @remote_function(dispatch="slice", collect="flatten")
    def rows_by_worker(self, rows: Any) -> Any:
        """Identity, by worker."""
        return rows

    @remote_function(dispatch="all", collect="flatten")
    def copies(self, rows: Any) -> Any:
        """Identity of rows that every rank has."""
        return rows

    @remote_function(dispatch="all", collect="flatten")
    def deques(self, rows: list[int]) -> Any:
        """A container whose rows are not known, on every rank."""
        return deque(rows)

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

    @remote_function(dispatch="slice_dp", split=("prompts",))
    def only_prompts(self, prompts: Any, stop: Any = None) -> Any:
        """Return what each worker was given, where one argument is named."""
        return prompts, stop

    @remote_function(dispatch="slice_dp", replicate=("stop",))
    def all_but_stop(self, prompts: Any, stop: Any = None) -> Any:
        """Return what each worker was given, where one argument is excepted."""
        return prompts, stop

    @remote_function(dispatch="slice_dp", uneven="strict", collect="flatten")
    def strict(self, rows: Any) -> Any:
        """Identity of what divides."""
        return rows

    @remote_function(dispatch="slice_dp", uneven="pad", collect="flatten")
    def padded(self, rows: Any) -> Any:
        """Identity of what is padded."""
        return rows

    @remote_function(dispatch="slice_dp", uneven="pad")
    def padded_sizes(self, rows: Any) -> int:
        """Rows of each worker where they are padded."""
        return len(rows)

    @remote_function(dispatch="slice_dp", uneven="drop", collect="flatten")
    def dropped(self, rows: Any) -> Any:
        """Identity of what is left."""
        return rows

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

    @remote_function(dispatch="slice_dp", collect="flatten")
    def tuple_of_two(self, rows):  # type: ignore[no-untyped-def]  # what an annotation would say is what is tested
        """Two columns without a return annotation."""
        return rows, rows

    @remote_function(dispatch="slice_dp")
    def sizes(self, rows: Any) -> int:
        """Rows that each worker was given."""
        return len(rows)

    @remote_function(dispatch="all", collect="first")
    def type_of(self, value: Any) -> str:
        """Name of the type that arrived."""
        return type(value).__name__

    @remote_function(dispatch="all", collect="first")
    def makes_deque(self, length: int) -> Any:
        """A container whose rows are not known."""
        return deque(range(1, length + 1))

    @remote_function(dispatch="all", collect="first")
    def makes_circle(self) -> Any:
        """A dict that contains itself."""
        circle: dict[str, Any] = {}
        circle["self"] = circle
        return circle

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows_or_none(self, rows: list[int]) -> list[int] | None:
        """Rows, and None where there are none."""
        return rows or None

    @remote_function(dispatch="slice_dp", collect="flatten")
    def flat_scalar(self, rows: Any) -> Any:
        """A result without rows, which flatten cannot join."""
        return f"rank {current_worker().rank}"

    @remote_function(dispatch="slice_dp", collect="flatten")
    def flat_keys(self, rows: list[int], nested: bool = False) -> dict[str, Any]:
        """Dicts whose keys differ, of lists or of dicts."""
        return {f"rank {current_worker().rank}": {"rows": rows} if nested else rows}

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

    @remote_function(dispatch="slice_dp", collect="mean", weight="rows")
    def mean(self, rows: list[float]) -> dict[str, float]:
        """Mean of the rows; NaN without rows."""
        return {"mean": sum(rows) / len(rows) if rows else float("nan")}

    @remote_function(dispatch="slice_dp", collect="mean")
    def mean_of_rows(self, rows: list[float]) -> float:
        """Mean of the rows; a wrong value without rows."""
        return sum(rows) / len(rows) if rows else -1e9

    @remote_function(dispatch="slice_dp", collect="mean", weight="equal")
    def mean_of_ranks(self, rows: list[float]) -> float:
        """Each data rank counts the same."""
        return sum(rows) / len(rows)

    @remote_function(dispatch="all", collect="mean", weight=first_rows)
    def by_own_weight(self, scale: float) -> dict[str, float]:
        """Each rank returns its weight."""
        data = data_rank()
        return {"weight": data + 1.0, "value": scale * data}

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

    @remote_function(dispatch="all", collect="sum")
    def array_sum(self, kind: str) -> Any:
        """A bare vector of one kind."""
        return _vector(kind, [1, 2, 3])

    @remote_function(dispatch="all", collect="mean")
    def strings(self) -> str:
        """Strings that differ, which cannot be reduced."""
        return f"rank {data_rank()}"

    @remote_function(dispatch="all", collect="sum")
    def shapes(self) -> list[int]:
        """Lists of different lengths."""
        return [1] * (data_rank() + 1)

    @remote_function(dispatch="all", collect="mean", weight="rows")
    def no_rows(self) -> float:
        """Weighed by rows, without any split argument."""
        return 1.0


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
