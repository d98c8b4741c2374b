"""The stores of backends with one process: each value is its own reference, and slices are views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.values.rows import PLAIN, size_in_bytes, take
from twinkle_remote.values.wanted_columns import picked

if TYPE_CHECKING:
    from twinkle_remote.protocol.tables import Columns, Rows


class Memory:
    """A `Store` that never copies."""

    def put(self, value: object) -> None:
        """Return the value itself, which is sent: nothing is stored."""
        return

    def get(
        self, ref: object, start: int | None = None, stop: int | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """The value, or rows of it; nothing moves."""
        if start is None or stop is None:
            return ref, 0
        return take(ref, start, stop), 0

    def pick(
        self, ref: object, rows: Rows | None, columns: Columns | None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """Rows of the value, and those of these columns that it has; nothing moves."""
        return picked(ref, rows, columns), 0

    def outlives_worker(self, payload: object) -> bool:
        """Whether a payload can be read without its worker: workers share this process."""
        return True

    def keep(self, value: object, *, eager: bool = False) -> tuple[object, int]:
        """The value, and its size in bytes if it is known."""
        return value, size_in_bytes(value)


class CallersMemory(Memory):
    """The `Memory` of who calls: what it reads is its own, and writes to it are not seen by later readers.

    A worker copies its arguments itself, all together.
    """

    def get(
        self, ref: object, start: int | None = None, stop: int | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """A copy of the value, or of rows of it; nothing moves."""
        return _own(super().get(ref, start, stop, timeout)[0]), 0

    def pick(
        self, ref: object, rows: Rows | None, columns: Columns | None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """A copy of rows of the value, and of those of these columns that it has; nothing moves."""
        return _own(super().pick(ref, rows, columns, timeout)[0]), 0


def _own(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    from twinkle_remote.values.snapshot import snapshot  # a loop whose results are plain does without

    return snapshot(value)
