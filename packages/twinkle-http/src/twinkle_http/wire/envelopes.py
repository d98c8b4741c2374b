"""Messages of client and server about a call, apart from its values: read without a walk over a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from twinkle_http.wire.errors import WireFormatError
from twinkle_http.wire.frame import Tree, frame, read_piece
from twinkle_http.wire.limits import Limits

if TYPE_CHECKING:
    from msgspec.msgpack import Decoder

    from twinkle_http.wire.frame import WireMessage

T = TypeVar("T")

_LIMITS = Limits()
FIGURES = (
    *("rank", "rows", "is_list", "rows_given", "total", "ended", "produced", "fetched", "started", "seconds"),
    *("fetch_seconds", "numbered", "counted", "fetched_columns"),
)
"""The fields of an outcome that travel as they are, in the order of `RankUpdate.figures`."""


class CallRequest(msgspec.Struct, omit_defaults=True):
    """A call as a client sends it; its fields are checked where they are used.

    Attributes:
        kind: Kind of the call.
        group: Group of the component.
        instance: Its id.
        target: What is built or called.
        args: Positional arguments, in the form of the tree.
        kwargs: Keyword arguments, likewise.
        mesh: Mesh of a component to build, likewise.
        line: File and line of the caller.
        ranks: The called ranks; None for those that the function says.
        by_rank: The answers of the ranks are wanted one by one.
        adds: Of a function that adds columns to rows, these alone are wanted.
        timeout: Seconds to the deadline, where the caller says so.
        floor: Requests below this number were answered, and the client has the answers.
        drop: Names of results that are no longer used.
        read: Number of the last update that the client has read; given for calls of single ranks.
    """

    kind: Any = None
    group: Any = None
    instance: Any = None
    target: Any = None
    args: Any = msgspec.field(default_factory=list)
    kwargs: Any = msgspec.field(default_factory=dict)
    mesh: Any = None
    line: Any = None
    ranks: Any = None
    by_rank: Any = False
    adds: Any = False
    timeout: Any = None
    floor: int = 0
    drop: list[str] = msgspec.field(default_factory=list)
    read: int = 0


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


class RankUpdate(msgspec.Struct, omit_defaults=True):
    """The answer of one rank.

    Attributes:
        figures: The `FIGURES` of its outcome.
        failure: Texts of its failure.
        error: Its exception, encoded.
        value: Its value, encoded, if it is small and an item of a generator.
        outlives: The value can be read when its worker has ended.
    """

    figures: list[Any]
    failure: list[Any] | None = None
    error: bytes | None = None
    value: bytes | None = None
    outlives: bool = False


class CallUpdate(msgspec.Struct, omit_defaults=True):
    """The state of a call, as the answer to its request or later; or a line of a worker.

    Attributes:
        name: Name of its result.
        accepted: It was taken, and nothing else is known yet.
        refused: It was not taken, and this is why.
        unsent: The error, encoded, with which it failed before it was sent to its workers.
        done: All ranks have answered.
        ended: The iterator is at its end.
        rows: Rows of the value, if they are known.
        scalar: A list of the value, if that is None, a boolean or a number; None for others.
        value: The value, encoded, if it is small.
        error: The error, encoded.
        first: Label, node, type, text and method of the first failure.
        upstream: It is that of another call, whose result is an argument.
        ranks: The answers of ranks that were not reported before.
        each: Whether every called rank received rows of its own; None if that is not known.
        line: What a worker has printed.
        is_error: That was printed on standard error.
        restarted: A group, and the ranks that are other workers now.
    """

    name: str = ""
    accepted: bool = False
    refused: Refusal | None = None
    unsent: bytes | None = None
    done: bool = False
    ended: bool = False
    rows: int | None = None
    scalar: list[Any] | None = None
    value: bytes | None = None
    error: bytes | None = None
    first: list[str] | None = None
    upstream: bool = False
    ranks: list[RankUpdate] = msgspec.field(default_factory=list)
    each: bool | None = None
    line: str | None = None
    is_error: bool = False
    restarted: list[Any] | None = None


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


_requests = msgspec.msgpack.Decoder(CallRequest)
CALL_UPDATE = msgspec.msgpack.Decoder(Tree[CallUpdate])
UPDATE_REQUEST = msgspec.msgpack.Decoder(Tree[UpdateRequest])
UPDATE_ANSWER = msgspec.msgpack.Decoder(Tree[UpdateAnswer])
UNREAD = msgspec.msgpack.Decoder(Tree[msgspec.Raw])


def message_of(envelope: msgspec.Struct) -> WireMessage:
    """The message of an envelope."""
    return frame(Tree(envelope, [], []), ())


def packed(envelope: msgspec.Struct) -> bytes:
    """The bytes of that message."""
    return message_of(envelope).head


def unpacked(data: bytes, decoder: Decoder[Tree[T]]) -> T:
    """The envelope of a message that was read whole.

    Args:
        data: The message.
        decoder: One of those above.

    Raises:
        WireFormatError: It is no such message.
    """
    tree, buffers = read_piece(data, _LIMITS, decoder)
    if buffers or tree.nodes:
        raise WireFormatError("this message has neither nodes nor buffers")
    return tree.root


def read_request(root: msgspec.Raw) -> CallRequest:
    """The request of a call; raises WireFormatError if it is none."""
    try:
        return _requests.decode(root)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise WireFormatError(f"this is no request of a call: {error}") from None
