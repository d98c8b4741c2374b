"""A component whose options meet kinds of values, and values of one's own types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from twinkle_remote.component.decorators import remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh import DeviceMesh


@dataclass
class Lengths:
    """A column, and what is counted once."""

    lengths: list[int]

    @cached_property
    def total(self) -> int:
        """The sum of the column."""
        return sum(self.lengths)


class Prompts(list[Any]):
    """A list with an attribute."""

    scale = 1.0


class Box:
    """An object that holds rows in a field."""

    def __init__(self, held: Any) -> None:
        self.held = held


def every_nth(
    length: int, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], device_mesh: DeviceMesh | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give worker i every n-th row, from row i on."""
    return (args[0][i::length],), kwargs


@remote_class()
class Kinds:
    """Looks at what it is given, and makes values of many kinds."""

    @remote_function(dispatch="slice_dp", collect="flatten", replicate=("options",))
    def with_options(self, rows: list[Any], **options: Any) -> list[Any]:
        """Each row with the options, which go whole."""
        return [(row, options["stop"]) for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten", replicate=("extra",))
    def with_extra(self, rows: list[Any], *extra: Any) -> list[Any]:
        """Each row with the further arguments, which go whole."""
        return [(row, *extra) for row in rows]

    @remote_function(dispatch=every_nth, collect="flatten")
    def dealt(self, rows: list[int]) -> list[int]:
        """The rows that a callable dealt to this worker."""
        return rows

    @remote_function(dispatch=every_nth, collect="sum")
    def dealt_total(self, rows: list[int]) -> int:
        """The sum of the rows that a callable dealt to this worker."""
        return sum(rows)

    @remote_function(dispatch="slice_dp", collect="sum", uneven="pad")
    def padded_total(self, rows: list[int], valid: list[bool] | None = None) -> int:
        """The sum of the rows that are not repeated."""
        return sum(_own(rows, valid))

    @remote_function(dispatch="slice_dp", collect="mean", uneven="pad")
    def padded_mean(self, rows: list[int], valid: list[bool] | None = None) -> float:
        """The mean of the rows that are not repeated; a wrong value without any."""
        own = _own(rows, valid)
        return sum(own) / len(own) if own else -1e9

    @remote_function(dispatch="slice_dp")
    def total_of(self, batch: Any) -> Any:
        """The sum that a batch has counted."""
        return batch.total

    @remote_function(dispatch="slice_dp", collect="flatten")
    def counted(self, rows: list[int]) -> Any:
        """A batch that has counted its rows."""
        batch = Lengths(rows)
        assert batch.total == sum(rows)
        return batch

    @remote_function(dispatch="slice_dp")
    def scale_of(self, rows: Any) -> Any:
        """The type of a list, its attribute and its rows."""
        return type(rows).__name__, rows.scale, list(rows)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows_and(self, rows: list[int], beside: Any) -> Any:
        """Rows next to another value."""
        return {"rows": rows, "beside": beside.value}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def array(self, rows: list[Any]) -> Any:
        """A numpy array of the rows, in the type that numpy gives them."""
        return import_module("numpy").array(rows)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def frame(self, rows: list[Any]) -> Any:
        """A pandas frame of the rows, with a fresh index."""
        return import_module("pandas").DataFrame({"row": rows})

    @remote_function(dispatch="slice_dp", collect="flatten")
    def echo(self, rows: Any) -> Any:
        """Identity."""
        return rows


class Whole:
    """An object without rows, around any value."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def value(self) -> Any:
        """The value."""
        return {"number": 2.0, "names": ["loss", "kl", "clip"], "set": {1, 2}, "text": "same", "none": None}[self.kind]


class Growing:
    """An object that holds rows in a field, and can be written to."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def __len__(self) -> int:
        return len(self.held)


def grow(value: Any) -> None:
    """Write to a container: one more item."""
    held = value.held if isinstance(value, Growing) else value
    (held.add if isinstance(held, set) else held.append)(len(held))


@remote_class()
class Hoard:
    """Keeps a value, and writes to it."""

    kept: Any = None

    @remote_function(dispatch="all")
    def keep(self, value: Any) -> None:
        """Keep a value."""
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
        """The value that it keeps."""
        return self.kept


def _own(rows: Sequence[int], valid: Sequence[bool] | None) -> list[int]:
    return [row for row, kept in zip(rows, valid or [True] * len(rows), strict=True) if kept]
