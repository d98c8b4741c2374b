"""Messages: their frame in bytes, what a reader accepts, and the envelopes of client and server.

message   b"TWK2", the bytes of the head (8, little endian), the head, the buffers one after the other
head      [root, sizes of the buffers] as MessagePack; the root is the tree of a value, or an envelope
"""

from __future__ import annotations

import dataclasses
import mmap
import struct
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from twinkle_remote.errors import DispatchError, TwinkleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")
Buffer: TypeAlias = "bytearray | mmap.mmap"
_PREFIX = struct.Struct("<4sQ")
_MAGIC = b"TWK2"
_MAPPED_BYTES = 1 << 20  # larger buffers are mapped: their pages are written once


class WireTypeError(DispatchError, TypeError):
    """A value of a type that cannot be sent; the message names the type, the place and what to use."""


class WireFormatError(TwinkleError, ValueError):
    """Bytes that are no message of this format, or exceed a limit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one message; what is beyond one is refused before its memory is taken.

    Attributes:
        body: Bytes of the whole message.
        head: Bytes of the part that is no raw buffer.
        buffers: Number of raw buffers.
        depth: Values within values.
    """

    body: int = 16 << 30
    head: int = 64 << 20
    buffers: int = 100_000
    depth: int = 100


DEFAULTS = Limits()


class MessageHead(msgspec.Struct, Generic[T], array_like=True):
    """The part of a message that is no raw buffer."""

    root: T
    sizes: list[int]


@dataclasses.dataclass(frozen=True, slots=True)
class WireMessage:
    """A message to send: prefix and head, and views of the values' own memory."""

    head: bytes
    buffers: Sequence[memoryview] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the whole message."""
        return len(self.head) + sum(view.nbytes for view in self.buffers)

    def chunks(self, size: int = 1 << 20) -> Iterator[memoryview]:
        """The message in parts of at most `size` bytes; buffers are not copied."""
        for view in (memoryview(self.head), *self.buffers):
            for start in range(0, view.nbytes, size):
                yield view[start : start + size]

    def to_bytes(self) -> bytes:
        """The message as one value."""
        return b"".join((self.head, *self.buffers)) if self.buffers else self.head


def framed(root: Any, buffers: Sequence[memoryview] = (), *, what: str = "the value") -> WireMessage:
    """The message of a tree (or of an envelope, a msgspec struct) and its buffers.

    Raises:
        WireTypeError: A text has lone surrogates.
    """
    try:
        head = msgspec.msgpack.encode(MessageHead(root, [view.nbytes for view in buffers]))
    except UnicodeEncodeError as error:
        raise WireTypeError(f"{what} holds text that is no Unicode, with lone surrogates: {error}") from None
    return WireMessage(_PREFIX.pack(_MAGIC, len(head)) + head, buffers)


class MessageReader(Generic[T]):
    """Reads a message from parts as they arrive, each buffer into memory of its own.

    Args:
        limits: What is accepted.
        decoder: Reads the head.
    """

    def __init__(self, limits: Limits, decoder: msgspec.msgpack.Decoder[MessageHead[T]] | None = None) -> None:
        self._limits = limits
        self._decoder: Any = decoder or ANY
        self._root: Any = None
        self._buffers: list[Buffer] = []
        self.size = 0
        self._places = self._next_places()
        self._place = next(self._places)  # memory that the next bytes fill

    def _next_places(self) -> Iterator[memoryview]:
        prefix = bytearray(_PREFIX.size)
        yield memoryview(prefix)
        magic, size = _PREFIX.unpack(prefix)
        if magic != _MAGIC:
            raise WireFormatError(f"this is no message of this version of twinkle: it does not begin with {_MAGIC!r}")
        if size > self._limits.head:
            raise WireFormatError(f"the head of a message has at most {self._limits.head} bytes here, not {size}")
        data = _new_buffer(size)
        yield memoryview(data)
        self._root, sizes = self._read_head(data)
        for size in sizes:
            self._buffers.append(_new_buffer(size))
            yield memoryview(self._buffers[-1])

    def _read_head(self, data: Buffer) -> tuple[Any, list[int]]:
        try:
            head = self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
            raise WireFormatError(f"the head of a message cannot be read: {error}") from None
        if len(head.sizes) > self._limits.buffers:
            raise WireFormatError(f"a message has at most {self._limits.buffers} buffers, not {len(head.sizes)}")
        if min(head.sizes, default=0) < 0 or sum(head.sizes) > self._limits.body:
            raise WireFormatError(f"the buffers of a message have at most {self._limits.body} bytes")
        return head.root, head.sizes

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises:
            WireFormatError: They are no message, or exceed a limit.
        """
        view = memoryview(data)
        self.size += view.nbytes
        if self.size > self._limits.body:
            raise WireFormatError(f"a message has at most {self._limits.body} bytes here, and this one has more")
        while view.nbytes:
            self._go_on()
            if not self._place.nbytes:
                raise WireFormatError("there are bytes behind the end of the message")
            count = min(view.nbytes, self._place.nbytes)
            self._place[:count] = view[:count]
            self._place, view = self._place[count:], view[count:]

    def _go_on(self) -> None:
        while not self._place.nbytes and (place := next(self._places, None)) is not None:
            self._place = place

    def finish(self) -> tuple[T, list[Buffer]]:
        """The root and the buffers, when all bytes were fed.

        Raises:
            WireFormatError: The message is cut off.
        """
        self._go_on()
        if self._place.nbytes:
            raise WireFormatError(f"the message is cut off after {self.size} bytes")
        return self._root, self._buffers


ANY = msgspec.msgpack.Decoder(MessageHead[Any])


def _new_buffer(size: int) -> Buffer:
    return bytearray(size) if size < _MAPPED_BYTES else mmap.mmap(-1, size)


class CallRequest(msgspec.Struct, omit_defaults=True):
    """A call as a client sends it; its fields are checked where they are used.

    Attributes:
        kind: Kind of the call.
        group: Group of the component.
        instance: Its id.
        target: What is built or called.
        args: Positional arguments, in the form of the tree.
        kwargs: Keyword arguments, likewise.
        line: File and line of the caller.
        eager: The caller waits for the value: the answer is the end of the call, if that comes in a moment.
        floor: Requests below this number were answered, and the client has the answers.
        drop: Names of results that are no longer used.
    """

    kind: Any = None
    group: Any = None
    instance: Any = None
    target: Any = None
    args: Any = msgspec.field(default_factory=list)
    kwargs: Any = msgspec.field(default_factory=dict)
    line: Any = None
    eager: bool = False
    floor: int = 0
    drop: list[str] = msgspec.field(default_factory=list)


class Refusal(msgspec.Struct):
    """Why the server did not take a call.

    Attributes:
        status: The HTTP status for it.
        type: A word that code can compare.
        message: The text.
        request: Id of the request.
    """

    status: int
    type: str
    message: str
    request: str


class Figures(msgspec.Struct, array_like=True):
    """The size and the times of a value that stays at the server; the fields are those of an outcome."""

    rows: int | None = None
    is_list: bool = False
    columns: list[str] | None = None
    produced: int = 0
    started: float = 0.0
    seconds: float = 0.0


class CallUpdate(msgspec.Struct, omit_defaults=True):
    """The end of a call, as the answer to its request or later.

    Attributes:
        name: Name of its result.
        accepted: It was taken, and nothing else is known yet.
        refused: It was not taken, and this is why.
        unsent: The error, encoded, with which it failed before it was sent to its workers.
        error: The error, encoded, with which it ended.
        upstream: It is that of another call, whose result is an argument.
        ended: The iterator is at its end.
        value: The value, encoded, if it is small.
        figures: What is known of the value.
    """

    name: str = ""
    accepted: bool = False
    refused: Refusal | None = None
    unsent: bytes | None = None
    error: bytes | None = None
    upstream: bool = False
    ended: bool = False
    value: bytes | None = None
    figures: Figures | None = None


class UpdateRequest(msgspec.Struct, omit_defaults=True):
    """A client asks what became of its calls.

    Attributes:
        after: Number of the last update that it has read.
        seconds: How long it waits for more.
        floor: As for `CallRequest`.
        drop: As there.
    """

    after: int = 0
    seconds: float = 0.0
    floor: int = 0
    drop: list[str] = msgspec.field(default_factory=list)


class UpdateAnswer(msgspec.Struct, omit_defaults=True):
    """The updates on several calls.

    Attributes:
        updates: The updates by number, ascending.
        draining: The server stops.
    """

    updates: list[tuple[int, CallUpdate]] = msgspec.field(default_factory=list)
    draining: bool = False


class ResultRequest(msgspec.Struct, omit_defaults=True):
    """A client asks for a result, or to cancel its call.

    Attributes:
        name: Name of the result.
        rows: The rows to read, in the form of the tree; None for all.
        columns: Its columns to read, of those that are there, likewise.
        withdraw: Its call is cancelled also where it has not begun.
    """

    name: str
    rows: Any = None
    columns: Any = None
    withdraw: bool = False


CALL_REQUEST = msgspec.msgpack.Decoder(MessageHead[CallRequest])
CALL_UPDATE = msgspec.msgpack.Decoder(MessageHead[CallUpdate])
UPDATE_REQUEST = msgspec.msgpack.Decoder(MessageHead[UpdateRequest])
UPDATE_ANSWER = msgspec.msgpack.Decoder(MessageHead[UpdateAnswer])
RESULT_REQUEST = msgspec.msgpack.Decoder(MessageHead[ResultRequest])


def packed(envelope: msgspec.Struct) -> bytes:
    """The bytes of an envelope without values."""
    return framed(envelope).head


def unpacked(data: bytes, decoder: msgspec.msgpack.Decoder[MessageHead[T]]) -> T:
    """The envelope of a message without buffers.

    Args:
        data: The message.
        decoder: One of those above.

    Raises:
        WireFormatError: It is no such message.
    """
    reader = MessageReader(DEFAULTS, decoder)
    reader.feed(data)
    root, buffers = reader.finish()
    if buffers:
        raise WireFormatError("this message has no buffers")
    return root
