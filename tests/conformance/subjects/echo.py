"""Components that give back or reduce what they are given, and the values that they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote import current_worker, remote_class, remote_function

if TYPE_CHECKING:
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
        return rows

    @remote_function(dispatch="slice", collect="flatten")
    def rows_by_worker(self, rows: Any) -> Any:
        return rows

    @remote_function(dispatch="all", collect="flatten")
    def copies(self, rows: Any) -> Any:
        """Identity of rows that every rank has."""
        return rows

    @remote_function(dispatch="all", collect="first")
    def whole(self, value: Any) -> Any:
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
        return current_worker().rank, args, kwargs

    @remote_function(dispatch=by_worker)
    def given_by_function(self, value: Any, place: Any = None, meshed: bool = False) -> Any:
        """Return what a callable dispatch made."""
        return value, place, meshed

    @remote_function(execute="first")
    def first_only(self, rows: Any) -> Any:
        return current_worker().rank, rows

    @remote_function(collect="first")
    def rank_of_first(self) -> Any:
        return current_worker().rank

    @remote_function()
    def ranks(self) -> Any:
        return current_worker().rank

    @remote_function(collect="last_pp")
    def ranks_of_last_stage(self) -> Any:
        """Ranks of the last stage, one for each data rank."""
        return current_worker().rank

    @remote_function(collect=last_and_mesh)
    def by_function(self) -> Any:
        return current_worker().rank

    @remote_function(dispatch="slice_dp", collect="flatten", lazy_collect=False)
    def at_once(self, rows: Any) -> Any:
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
        return len(rows)

    @remote_function(dispatch="all", collect="first")
    def type_of(self, value: Any) -> str:
        return type(value).__name__

    @remote_function(dispatch="all", collect="first")
    def nothing(self) -> None:
        """None."""


@remote_class()
class Reducer:
    """Results that are reduced."""

    @remote_function(dispatch="slice_dp", collect="sum")
    def total(self, rows: list[float]) -> float:
        return sum(rows)

    @remote_function(dispatch="slice_dp", collect="mean")
    def mean(self, rows: list[float]) -> dict[str, float]:
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


def data_rank() -> int:
    """The running worker's data rank; its rank without a mesh."""
    worker = current_worker()
    if worker.rank is None:
        return 0
    return worker.rank if worker.mesh is None else worker.mesh.data_rank(worker.rank)


@remote_class()
class Ledger:
    """Makes rows with columns, and looks at some of them."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int], width: int = 1000) -> dict[str, Any]:
        """A narrow column, a wide one, and a note."""
        return {"ids": rows, "wide": [bytes([row % 256]) * width for row in rows], "note": "same"}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rows: dict[str, Any], by: int = 2) -> dict[str, Any]:
        return {"score": [by * one for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def pairs(self, rows: dict[str, Any]) -> list[Any]:
        """The values of two columns, and whether the wide one is there."""
        return [(one, score, "wide" in rows) for one, score in zip(rows["ids"], rows["score"], strict=True)]


class Growing:
    """An object that holds rows in a field, and can be written to."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def __len__(self) -> int:
        return len(self.held)


def grow(value: Any) -> None:
    """Write to a container: one more item."""
    held = value.held if isinstance(value, Growing) else value
    held.append(len(held))


@remote_class()
class Hoard:
    """Keeps a value, and writes to it."""

    kept: Any = None

    @remote_function(dispatch="all")
    def keep(self, value: Any) -> None:
        self.kept = value

    @remote_function(dispatch="all")
    def grow(self) -> int:
        """Write to the value that it keeps; returns its size."""
        grow(self.kept)
        return len(self.kept)

    @remote_function(dispatch="all")
    def size(self) -> int:
        """The size of the value that it keeps."""
        return len(self.kept)

    @remote_function(dispatch="all", collect="first")
    def given(self) -> Any:
        return self.kept


@remote_class()
class Stages:
    """Stages that remember what they were given."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []

    @remote_function(dispatch="slice_dp", collect="flatten")
    def tenfold(self, rows: list[int]) -> list[int]:
        self.given.append(list(rows))
        return [10 * row for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def later(self, rows: list[int]) -> list[int]:
        return [10 * row for row in rows]

    @remote_function(dispatch="all", collect="none", lazy_collect=False)
    def calls(self) -> tuple[int, list[list[int]]]:
        """The rank, and what it was given in each call."""
        return current_worker().rank or 0, self.given
