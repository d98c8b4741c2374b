"""Reads results from the server: a call's value, or rows of what one rank made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_http.client.replies import ServedPayload
from twinkle_remote.protocol import RowsOfRank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_SCALAR_BYTES = 9  # the most that one takes


class ServedStore:
    """Reads results from the server.

    Args:
        read: Reads the value of a call by its name.
        read_rows: Reads rows of ranks, joined.
        decode: Makes the value of a message's bytes.
    """

    def __init__(
        self,
        read: Callable[[str, float | None], tuple[Any, int]],
        read_rows: Callable[[Sequence[RowsOfRank], float | None], tuple[Any, int]],
        decode: Callable[[bytes], Any],
    ) -> None:
        self._read = read
        self._read_rows = read_rows
        self._decode = decode

    def put(self, value: object) -> None:
        """Store no value: it travels with the call."""
        return

    def get(
        self, ref: object, start: int | None = None, stop: int | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """The value of a result, or rows of it, and the bytes that came for it."""
        assert isinstance(ref, ServedPayload)
        if ref.scalar is not None and start is None:
            return ref.scalar[0], _SCALAR_BYTES
        if ref.value is not None and start is None:
            return self._decode(ref.value), len(ref.value)
        if ref.rank is None and start is None:
            return self._read(ref.result.name, timeout)
        return self._read_rows([RowsOfRank(ref, start, stop)], timeout)

    def get_joined(self, pieces: Sequence[RowsOfRank], timeout: float | None) -> tuple[Any, int]:
        """The rows of several ranks, joined, and the bytes that came for them."""
        return self._read_rows(pieces, timeout)

    def keep(self, value: object, *, eager: bool = False) -> tuple[object, int]:
        """The value itself."""
        return value, 0

    def outlives_worker(self, payload: object) -> bool:
        """Whether the server's session can read it when the worker that made it has ended."""
        return isinstance(payload, ServedPayload) and payload.outlives
