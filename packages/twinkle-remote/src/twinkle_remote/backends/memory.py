"""The store of backends with one process: each value is its own reference, and slices are views."""

from __future__ import annotations

from typing import Any

from twinkle_remote.values.rows import size_in_bytes, take


class Memory:
    """A `Store` that never copies."""

    def put(self, value: object) -> None:
        """Nothing is stored: the value itself is sent."""
        return

    def get(
        self, ref: object, start: int | None = None, stop: int | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """The value, or rows of it; nothing moves."""
        if start is None or stop is None:
            return ref, 0
        return take(ref, start, stop), 0

    def outlives_worker(self, payload: object) -> bool:
        """Whether a payload can be read without its worker: workers share this process."""
        return True

    def keep(self, value: object) -> tuple[object, int]:
        """The value, and its size in bytes if it is known."""
        return value, size_in_bytes(value)
