"""Results at the server, as the client has them: the pending answer of a call, its value by name, and rows of it.

A call takes lazy arguments as plans over names, so that no row passes the client.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from twinkle_http.errors import WireFormatError, failure_of
from twinkle_http.messages import ResultRequest
from twinkle_http.types import loaded_component_type, loaded_error_type
from twinkle_http.wire import Writer, decode, framed
from twinkle_remote.backends.support import (
    Combined,
    Concat,
    Input,
    Join,
    LazySlot,
    Select,
    StoredRows,
    Take,
    make_handle,
)
from twinkle_remote.protocol import Component, Outcome, Replicated, Reply
from twinkle_remote.rows import picked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_http.client.connection import Connection
    from twinkle_http.messages import CallUpdate
    from twinkle_remote.backends.support import Node
    from twinkle_remote.protocol import Columns, InputReplies, Rows, Task

_DROPPED_AT_ONCE = 1000


class ServedPayload:
    """The name of a result at the server, which is kept there as long as this is.

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
        sent: Bytes that are sent.
        inputs: The results among the arguments, which are kept until the call has ended.
        store: Makes the exception of an update's bytes.
    """

    def __init__(
        self, payload: ServedPayload, request: str, sent: int, inputs: Sequence[ServedPayload], store: ServedStore
    ) -> None:
        super().__init__(0, sent)
        self.payload, self._request, self._inputs, self._store = payload, request, inputs, store

    def take(self, update: CallUpdate) -> None:
        """Take the end of the call."""
        if update.error is not None:
            self.lose(self._store.decoded(update.error), upstream=update.upstream)
            return
        self.payload.value = update.value
        columns = update.outcome.get("columns")
        known = {**update.outcome, "columns": None if columns is None else tuple(columns)}
        self._end(Outcome(0, payload=self.payload, **known))

    def lose(self, error: BaseException, *, upstream: bool = False) -> None:
        """Fail: by an error of the server, or because its session is lost."""
        self._end(Outcome(0, failure=failure_of(error, self._request, upstream=upstream)))

    def _end(self, outcome: Outcome) -> None:
        self.answer(outcome)
        self._inputs = ()


class ServedStore:
    """Reads results from the server.

    Attributes:
        classes: The remote classes that this client builds, by the server's names.
        dropped: Names of results that nothing here uses any more.
    """

    def __init__(self, connection: Connection) -> None:
        self.classes: dict[str, type] = {}
        self.dropped: deque[str] = deque()
        self._connection = connection

    def take_dropped(self) -> list[str]:
        """Some of the dropped names, for the next request."""
        return [self.dropped.popleft() for _ in range(min(_DROPPED_AT_ONCE, len(self.dropped)))]

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
            return self.decoded(ref.value), len(ref.value)
        writer = Writer()
        given = [None if rows is None else _as_wire(rows), None if columns is None else list(columns)]
        trees = [writer.tree(one, "what is read", 1) for one in given]
        message = framed(ResultRequest(ref.name, *trees), writer.buffers)
        limit = math.inf if timeout is None else timeout
        data = self._connection.post("/read", message, timeout=limit)
        value = self.decoded(data)
        if isinstance(value, dict) and value.keys() == {"error"} and isinstance(value["error"], bytes):
            raise self.decoded(value["error"])
        return value, len(data)

    def keep(self, value: object, *, eager: bool = False) -> tuple[object, int]:
        """The value itself."""
        return value, 0

    def outlives_worker(self, payload: object) -> bool:
        """Whether the payload can be read when its worker has ended: not, its worker is the server."""
        return False

    def decoded(self, data: bytes | bytearray) -> Any:
        """The value of a message's bytes; its arrays cannot be written to, because others may have it, too."""
        return decode(data, named=self._handle, error_type=loaded_error_type, read_only=True)

    def _handle(self, node: list[Any]) -> Any:
        match node:
            case ["handle", str(name), str(group), str(instance)]:
                cls = self.classes.get(name) or loaded_component_type(name)
                if cls is None:
                    raise WireFormatError(f"the class {name!r:.120} of a handle is not loaded here: import it first")
                return make_handle(cls, Component(group, instance, cls.__name__, (0,), None))
        raise WireFormatError(f"a node {node[0]!r:.40} is not known")


class ArgumentPlans:
    """The lazy arguments of one task.

    Args:
        task: The task.
        inputs: The replies that it waits for, and the plan of its arguments; empty if their calls are done.

    Attributes:
        used: The results that were named.
    """

    def __init__(self, task: Task, inputs: InputReplies) -> None:
        self.used: list[ServedPayload] = []
        self._task, self._inputs = task, inputs

    def tag(self, value: Any, part: Callable[[Any], Any]) -> list[Any] | None:
        """The tag of a lazy argument, or of one that is marked to go whole, on the wire; None for other values."""
        if isinstance(value, Replicated):
            return ["whole", part(value.value)]
        if isinstance(value, ServedPayload):
            self.used.append(value)
            return ["lazy", value.name]
        if not isinstance(value, LazySlot):
            return None
        plan = self._plan(self._node(value.index))
        return self.tag(plan[1], part) if isinstance(plan[1], ServedPayload) else ["table", part(plan)]

    def _node(self, index: int) -> Node:
        """The table of a lazy argument.

        Raises:
            DispatchError: A row is not there, or the columns do not fit each other.
        """
        task, plan = self._task, self._inputs.plan
        if task.reads is not None:
            node = task.reads.values[index]
            if isinstance(node, Exception):
                raise node
            return node
        assert plan is not None
        return plan.arguments[plan.of_share[task.place][index]].node

    def _plan(self, node: Node) -> list[Any]:
        """A table as words with their arguments."""
        match node:
            case StoredRows():
                return _of_rows(["value", self._payload(node.payload)], node.rows)
            case Combined():  # of the one worker
                return self._plan(node.of[0])
            case Concat():
                parts = [self._plan(one) for one in node.of]
                return _of_rows(parts[0] if len(parts) == 1 else ["concat", parts], node.order)
            case Join():
                parts = [self._plan(one) for one in node.of]
                return parts[0] if len(parts) == 1 else ["join", parts]
            case Select():
                return ["select", self._plan(node.of), list(node.names)]
        assert isinstance(node, Take), node
        return _of_rows(self._plan(node.of), node.rows)

    def _payload(self, payload: object) -> object:
        if not isinstance(payload, Input):
            return payload
        reply = self._inputs.replies[payload.index]
        assert isinstance(reply, ServedReply), "a reply of another backend"
        return reply.payload


def _of_rows(plan: list[Any], rows: Rows | slice | None) -> list[Any]:
    return plan if rows is None else ["take", plan, _as_wire(rows)]


def _as_wire(rows: Rows | slice) -> slice | list[int]:
    """Numbers of rows as the server takes them."""
    if isinstance(rows, range) and rows.step == 1:
        return slice(rows.start, rows.stop)
    return rows if isinstance(rows, slice) else list(rows)
