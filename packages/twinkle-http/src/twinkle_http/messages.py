"""The envelopes of client and server: msgspec structs, each the root of a message."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from twinkle_http.errors import WireFormatError
from twinkle_http.wire import framed, opened

T = TypeVar("T")


class CallRequest(msgspec.Struct, omit_defaults=True):
    """A call as a client sends it, its arguments as trees; its kind, ids and target are checked where they are used.

    Attributes:
        target: What is built or called.
        line: File and line of the caller.
        eager: The caller waits for the value: the answer is the end of the call, if that comes in a moment.
        floor: Requests below this number were answered, and the client has the answers.
        drop: Names of results that are no longer used.
    """

    kind: str = ""
    group: str = ""
    instance: str = ""
    target: str = ""
    args: Any = msgspec.field(default_factory=list)
    kwargs: Any = msgspec.field(default_factory=dict)
    line: str = ""
    eager: bool = False
    floor: int = 0
    drop: list[str] = msgspec.field(default_factory=list)


class CallUpdate(msgspec.Struct, omit_defaults=True):
    """The end of a call, as the answer to its request or later.

    Attributes:
        number: Number of its request; its result has the name r{number}.
        accepted: It was taken, and nothing else is known yet.
        error: The error, encoded, with which it ended.
        unsent: It failed before it was sent to its workers.
        upstream: The error is that of another call, whose result is an argument.
        value: The value, encoded, if it is small.
        outcome: What is known of the value: fields of `Outcome`.
    """

    number: int
    accepted: bool = False
    error: bytes | None = None
    unsent: bool = False
    upstream: bool = False
    value: bytes | None = None
    outcome: dict[str, Any] = msgspec.field(default_factory=dict)


class UpdateRequest(msgspec.Struct, omit_defaults=True):
    """A client asks what became of its calls; `floor` and `drop` are those of `CallRequest`.

    Attributes:
        after: Number of the last update that it has read.
        seconds: How long it waits for more.
    """

    after: int = 0
    seconds: float = 0.0
    floor: int = 0
    drop: list[str] = msgspec.field(default_factory=list)


class UpdateAnswer(msgspec.Struct, omit_defaults=True):
    """The updates on several calls by their own number, ascending, and whether the server stops."""

    updates: list[tuple[int, CallUpdate]] = msgspec.field(default_factory=list)
    draining: bool = False


class ResultRequest(msgspec.Struct, omit_defaults=True):
    """A client asks for some rows and columns of a result, or to cancel its call.

    Attributes:
        rows: A tree of their numbers; None for all.
        columns: A tree of names, of those that are there; None for all.
        withdraw: Its call is cancelled also where it has not begun.
    """

    name: str
    rows: Any = None
    columns: Any = None
    withdraw: bool = False


def packed(envelope: msgspec.Struct) -> bytes:
    """The bytes of an envelope without buffers."""
    return framed(envelope).to_bytes()


def as_envelope(tree: Any, kind: type[T]) -> T:
    """The envelope that a tree holds.

    Raises:
        WireFormatError: It holds none.
    """
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise WireFormatError(f"the message is no {kind.__name__}: {error}") from None


def unpacked(data: bytes | bytearray, kind: type[T]) -> T:
    """The envelope of a message without buffers; raises WireFormatError for other bytes."""
    tree, buffers = opened(data)
    if next(buffers, None) is not None:
        raise WireFormatError("this message has no buffers")
    return as_envelope(tree, kind)
