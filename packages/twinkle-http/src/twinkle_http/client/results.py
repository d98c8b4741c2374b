"""Results at the server, as the client has them: the pending answer of a call, its value by name, and rows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_http.errors import failure_of
from twinkle_remote.protocol import Outcome, Reply
from twinkle_remote.rows import picked

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from twinkle_http.messages import CallUpdate
    from twinkle_remote.protocol import Columns, Rows


class ServedPayload:
    """A result at the server, which is kept there as long as this is.

    Args:
        name: Its name.
        dropped: Takes the name when nothing here uses it.

    Attributes:
        value: The encoded value, if it came with the end of its call.
    """

    __slots__ = ("__weakref__", "_dropped", "name", "value")

    def __init__(self, name: str, dropped: deque[str]) -> None:
        self.name, self._dropped = name, dropped
        self.value: bytes | None = None

    def __del__(self) -> None:
        self._dropped.append(self.name)


class ServedReply(Reply):
    """The pending answer of a served component.

    Args:
        payload: The result.
        request: Id of the request, as the server's log has it.
        sent: Bytes that were sent.
        inputs: The results among the arguments, which are kept until the call has ended.
        decode: Makes the exception of an update's bytes.
    """

    def __init__(
        self,
        payload: ServedPayload,
        request: str,
        sent: int,
        inputs: Sequence[ServedPayload],
        decode: Callable[[bytes], Any],
    ) -> None:
        super().__init__(0, sent)
        self.payload = payload
        self._request, self._inputs, self._decode = request, inputs, decode

    def take(self, update: CallUpdate) -> None:
        """Take the end of the call."""
        if update.error is not None or update.unsent is not None:
            self.lose(self._decode(update.error or update.unsent or b""), upstream=update.upstream)
            return
        self.payload.value = update.value
        outcome = Outcome(0, payload=self.payload, ended=update.ended)
        known = update.figures
        if known is not None:
            outcome.rows, outcome.is_list, outcome.produced = known.rows, known.is_list, known.produced
            outcome.started, outcome.seconds = known.started, known.seconds
            outcome.columns = None if known.columns is None else tuple(known.columns)
        self._end(outcome)

    def lose(self, error: BaseException, *, upstream: bool = False) -> None:
        """Fail: by an error of the server, or because its session is lost."""
        self._end(Outcome(0, failure=failure_of(error, self._request, upstream=upstream)))

    def _end(self, outcome: Outcome) -> None:
        self.answer(outcome)
        self._inputs = ()


class ServedStore:
    """Reads results from the server.

    Args:
        read: Reads a result by its name, or some rows and columns of it; returns the value and its bytes.
        decode: Makes the value of a message's bytes.
    """

    def __init__(
        self,
        read: Callable[[str, Rows | None, Columns | None, float | None], tuple[Any, int]],
        decode: Callable[[bytes], Any],
    ) -> None:
        self._read, self._decode = read, decode

    def put(self, value: object) -> None:
        """Store no value: it travels with the call."""
        return

    def get(
        self, ref: object, rows: Rows | None = None, columns: Columns | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """The value of a result, or rows and columns of it, and the bytes that came for it."""
        if not isinstance(ref, ServedPayload):  # a plain value in a table
            return picked(ref, rows, columns), 0
        if ref.value is not None and rows is None and columns is None:
            return self._decode(ref.value), len(ref.value)
        return self._read(ref.name, rows, columns, timeout)

    def keep(self, value: object, *, eager: bool = False) -> tuple[object, int]:
        """The value itself."""
        return value, 0

    def outlives_worker(self, payload: object) -> bool:
        """Whether the payload can be read when its worker has ended: not, its worker is the server."""
        return False
