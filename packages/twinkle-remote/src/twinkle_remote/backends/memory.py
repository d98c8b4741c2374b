"""The stores of backends with one process: each value is its own reference, and slices are views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.rows.columns import picked
from twinkle_remote.rows.cut import PLAIN, size_in_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.tables.nodes import Columns, Rows


class Posted:
    """A value that another process of the program has posted; it is read where it is used, once.

    Attributes:
        take: Reads it; None when it was read, and in the process that has posted it.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._value: object = None
        self.take: Callable[[str], object] | None = None

    def read(self) -> object:
        """The value."""
        if self.take is not None:
            self._value, self.take = self.take(self._key), None
        return self._value


class Memory:
    """A `Store` that never copies."""

    def put(self, value: object) -> None:
        """Return the value itself, which is sent: nothing is stored."""
        return

    def get(
        self, ref: object, rows: Rows | None = None, columns: Columns | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """The value, or some of its rows and columns; nothing moves."""
        value = ref.read() if isinstance(ref, Posted) else ref
        return (value if rows is None and columns is None else picked(value, rows, columns)), 0

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
        self, ref: object, rows: Rows | None = None, columns: Columns | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """A copy of the value, or of some of its rows and columns; nothing moves."""
        value = super().get(ref, rows, columns)[0]
        if type(value) in PLAIN:
            return value, 0
        from twinkle_remote.rows.plain import snapshot  # a loop whose results are plain does without

        return snapshot(value), 0
