"""A component whose options meet kinds of values, and values of one's own types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from twinkle_remote import remote_class, remote_function

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

    @remote_function(dispatch=every_nth, collect="flatten")
    def dealt(self, rows: list[int]) -> list[int]:
        """The rows that a callable dealt to this worker."""
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def counted(self, rows: list[int]) -> Any:
        """A batch that has counted its rows."""
        batch = Lengths(rows)
        assert batch.total == sum(rows)
        return batch

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
