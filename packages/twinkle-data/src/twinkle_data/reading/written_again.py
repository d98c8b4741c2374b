"""Finds a source that writes to a row after it gave it, such as one that fills the same array for each row.

The loader keeps the rows of a batch, of a window of a shard and, of a stream, of the next batch, while the source
reads on. So such rows would be lost, and others would come twice.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from twinkle_data.sources.fingerprint import digest
from twinkle_data.sources.kinds import is_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

_EVERY: Final = 64
_DEPTH: Final = 4
_INERT: Final = (type(None), bool, int, float, complex, str, bytes)


class WrittenAgainError(ValueError):
    """A source wrote to a row after it gave it; this is no bad sample that could be skipped."""


class WrittenAgain:
    """Compares a row with what it was when it was read, after further rows were read.

    It looks at groups of rows 1, 2, 4, 8 and so on, and at every 64th. Numbers, texts, arrays, tensors, and
    containers and dataclasses of these are compared. Of another object nothing is, unless it is given again as
    another row; then its attributes are.
    """

    def __init__(self) -> None:
        self._groups = 0
        self._row: Any = None
        self._was = ""

    def __reduce__(self) -> tuple[type[WrittenAgain], tuple[()]]:
        return WrittenAgain, ()

    def begin(self) -> None:
        """Begin a group of rows that are kept together."""
        self._groups += 1
        self._row = None

    def keep(self, row: Any) -> None:
        """Note a row as it is now, if this group is looked at and no row of it is noted yet."""
        due = not self._groups & (self._groups - 1) or not self._groups % _EVERY
        if due and self._row is None and type(row) not in _INERT:
            self._row, self._was = row, _contents(row)

    def check(self, later: Sequence[Any], name: str) -> None:
        """Compare the row that is noted, after others were read.

        Args:
            later: Rows that were read after it.
            name: Name of what is read, for the error.

        Raises:
            WrittenAgainError: It has changed.
        """
        row = self._row
        if row is None or not (_is_compared(row) or any(one is row for one in later)):
            return
        if _contents(row) != self._was:
            raise WrittenAgainError(
                f"{name} wrote to a row, a {type(row).__name__}, after it gave it: the loader keeps rows while it "
                "reads the next ones, so rows would be lost and others come twice. Make a new object for each row, or "
                "give a copy (array.copy(), tensor.clone(), copy.deepcopy(row))"
            )

    def end(self) -> None:
        """Forget the row: it was delivered, and may be written to."""
        self._row = None


def _is_compared(row: Any) -> bool:
    return is_plain(row) or isinstance(row, dict) or is_dataclass(row)


def _contents(row: Any) -> str:
    """A digest of what a source may write to; the attributes of an object too."""
    held = None if _is_compared(row) else getattr(row, "__dict__", None)
    return digest(_plain(row if held is None else held, _DEPTH))


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, _INERT):
        return value
    if depth and isinstance(value, dict):
        return {key: _plain(part, depth - 1) for key, part in value.items() if isinstance(key, _INERT)}
    if depth and isinstance(value, (list, tuple)):
        return value if all(type(part) in _INERT for part in value) else [_plain(part, depth - 1) for part in value]
    if depth and is_dataclass(value) and not isinstance(value, type):
        return [_plain(getattr(value, field.name, None), depth - 1) for field in fields(value)]
    return value if is_plain(value) and not isinstance(value, (list, tuple)) else None
