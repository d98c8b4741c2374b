"""The HTTP backend: groups of workers behind a URL."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any

from twinkle_http.client.connection import Connection, refused
from twinkle_http.client.group import ServedGroup, check_groups
from twinkle_http.client.names import namer, rows_named
from twinkle_http.client.replies import ServedReply
from twinkle_http.client.store import ServedStore
from twinkle_http.client.update_poller import UpdatePoller
from twinkle_http.registered import loaded_component_type, loaded_error_type, register_annotated
from twinkle_http.tags import TagReader, TagWriter
from twinkle_http.wire.decode import decode, value_of
from twinkle_http.wire.encode import encode, encode_request
from twinkle_http.wire.envelopes import CALL_UPDATE, CallRequest, unpacked
from twinkle_http.wire.errors import WireFormatError
from twinkle_remote.backends.support import ThreadReplyBackend, driver_line, make_handle, narrowed, ping
from twinkle_remote.errors import AlreadyInitializedError, DispatchError, PlacementError, TwinkleError
from twinkle_remote.protocol import Component
from twinkle_remote.values import TYPES, component_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_http.client.connection import Answer
    from twinkle_http.client.replies import ServedRanks
    from twinkle_http.wire.envelopes import CallUpdate
    from twinkle_mesh import DeviceGroup
    from twinkle_remote.protocol import Call, RowsOfRank

_DROPPED_AT_ONCE = 1000
_WITH_A_CALL = 32
_STEPS = ("item", "close")  # of a generator: the caller says how long they may take
_tools = count()


class HttpBackend(ThreadReplyBackend):
    """The session of a server.

    Args:
        groups: The groups that the program expects; they must be the server's. None of them means all.
        seed: Not used, because the server's session has its own seed.
        address: URL of the server.
        token: The server's token.
        tls: File with the certificates to trust; None for those of the system.
        insecure: Plain HTTP beyond this machine is accepted.
        patience: Seconds for which the client retries a lost connection.
        compress: Send values compressed, in both directions; for slow links, and values that compress well.
    """

    def __init__(
        self,
        groups: Sequence[DeviceGroup],
        *,
        seed: int = 42,
        address: str,
        token: str = "",
        tls: str | None = None,
        insecure: bool = False,
        patience: float = 60.0,
        compress: bool = False,
    ) -> None:
        self._connection = Connection(address, token, tls=tls, insecure=insecure, patience=patience, compress=compress)
        described = self._value(self._connection.post("/open", encode({}, TYPES), patience=min(patience, 10.0)))
        self._connection.client = described["client"]
        self._connection.codings = tuple(described["codings"])
        self.start_timeout: float | None = described["start_timeout"]
        self._max_body = described["max_body"]
        self.can_restart: bool = described["can_restart"]
        self._any_group = described["mode"] == "local" and not described["groups"]
        self._groups = {one["name"]: ServedGroup(one["name"], one["size"]) for one in described["groups"]}
        self.store = ServedStore(self._read_result, self.read_rows, self._decoded)
        self._dropped: deque[str] = deque()
        self._classes: dict[str, type] = {}
        self._reader = TagReader(loaded_error_type, self._made)
        self._writer = TagWriter(TYPES, lambda value, part: None)
        self._closed = threading.Event()
        try:
            check_groups(groups, described["groups"])
        except AlreadyInitializedError:
            self._connection.close()
            raise
        self._poller = UpdatePoller(self._connection, described["lease"] / 3, self._take_dropped, self._restarted)

    def group(self, name: str) -> ServedGroup:
        """A group of the server's session."""
        if self._any_group:
            self._groups.setdefault(name, ServedGroup(name, 1))
        if name not in self._groups:
            known = ", ".join(map(repr, self._groups)) or "none"
            raise PlacementError(f"there is no group {name!r}; the server at {self._connection.address} has {known}")
        return self._groups[name]

    def send(self, call: Call) -> ServedReply | ServedRanks:
        """Send a call undivided."""
        if call.kind == "function" and call.target is not ping:
            raise DispatchError(
                f"{call.name}: a function cannot be sent over HTTP; make it a remote function of {call.component.name}"
            )
        lazies: list[Any] = []
        if call.spec.reads is not None and not call.reads_ranks:
            call = narrowed(call, lazies=False)  # the server narrows the lazy ones
        update, sent = self._numbered(self._request(call), call.name, lazies)
        reply = self._reply(update, sent)
        reply.lazies = lazies
        reply.each_has_rows = None if call.spec.dispatch == "slice" else callable(call.spec.dispatch)
        found = reply.ranks(call.ranks, update.each) if call.reads_ranks else reply
        self._take(reply, update)
        return found

    def _numbered(self, request: CallRequest, what: str, lazies: list[Any]) -> tuple[CallUpdate, int]:
        """The server's answer to a request that runs once, and the bytes that were sent."""
        self._poller.check()
        args, kwargs = request.args, request.kwargs
        dropped = self._take_dropped() if len(self._dropped) >= _WITH_A_CALL else []
        update, sent = self._posted(request, what, lazies, dropped)
        if update.refused is not None and update.refused.type == "TooMany" and self._dropped:
            request.args, request.kwargs = args, kwargs
            update, sent = self._posted(request, what, lazies, self._take_dropped())  # what was dropped makes room
        if update.refused is not None:
            given, address = update.refused, self._connection.address
            raise refused(given.type, f"{given.message} (request {given.request})", given.status, address)
        if update.unsent is not None:
            raise self._decoded(update.unsent)
        return update, sent

    def _posted(self, request: CallRequest, what: str, lazies: list[Any], dropped: list[str]) -> tuple[CallUpdate, int]:
        number = self._connection.number()
        request.drop = dropped
        try:
            request.floor = self._connection.floor()
            message = encode_request(request, TYPES, what=what, named=TagWriter(TYPES, namer(what, lazies)).node)
            size = message.nbytes
            if size > self._max_body:
                raise DispatchError(
                    f"{what}: the arguments have {size} bytes, and the server takes {self._max_body}; "
                    "make several calls, or serve(max_body=...)"
                )
            update = unpacked(self._connection.post("/call", message, number), CALL_UPDATE)
        except BaseException:
            self._dropped.extend(dropped)
            raise
        finally:
            self._connection.answered(number)
        return update, size

    def tool(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ServedTool:
        """A tool next to the server's session."""
        made = f"{name}-{self._connection.client}-{next(_tools)}"
        self._ask_tool(made, (name, *args), kwargs)
        return ServedTool(made, self._ask_tool)

    def _ask_tool(self, tool: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Send a request about a tool, and wait for the answer."""
        request = CallRequest("tool", target=tool, args=list(args), kwargs=dict(kwargs), line=driver_line())
        return self._done(request, str(args[0]))

    def restart_ranks(self, name: str, ranks: Sequence[int]) -> None:
        """Let the server restart workers that have ended."""
        self._done(CallRequest("restart", name, ranks=list(ranks), line=driver_line()), f"new workers of {name!r}")

    def _restarted(self, name: str, ranks: Sequence[int]) -> None:
        """Other workers have these ranks."""
        self.group(name).restarted(ranks)

    def _done(self, request: CallRequest, what: str) -> Any:
        """Send a request, and wait for what it returns."""
        reply = self._taken(*self._numbered(request, what, []))
        while not self.wait([reply.end], None):
            continue
        assert reply.outcome is not None
        if reply.outcome.failure is not None:
            raise reply.error()
        return self.store.get(reply.outcome.payload)[0]

    def _request(self, call: Call) -> CallRequest:
        component = call.component
        kind: str = call.kind
        target = call.target
        if kind == "create":
            register_annotated(target)
            name = component_name(target)
            self._classes[name] = target
            target = name
        elif kind == "function":
            kind, target = "ping", None
        elif kind == "generate":
            target = list(target)
        request = CallRequest(
            kind, component.group, component.instance, target, list(call.args), dict(call.kwargs), line=call.line
        )
        if kind == "create":
            request.mesh = component.mesh
        request.adds = call.spec.adds is not None
        if call.reads_ranks or kind in _STEPS:
            request.ranks, request.by_rank = list(call.ranks), call.reads_ranks
            request.timeout = call.deadline if kind in _STEPS else None
            request.read = self._poller.read
        return request

    def _taken(self, update: CallUpdate, sent: int) -> ServedReply:
        reply = self._reply(update, sent)
        self._take(reply, update)
        return reply

    def _reply(self, update: CallUpdate, sent: int) -> ServedReply:
        return ServedReply(update.name, sent, self.store.get, self._decoded, self._ask, self._dropped)

    def _take(self, reply: ServedReply, update: CallUpdate) -> None:
        reply.take(update)
        if not reply.end.done():
            self._poller.expect(reply)

    def _ask(self, question: str, name: str, seconds: float | None) -> Exception | None:
        request = {"name": name, "seconds": float(seconds or 0.0)}
        try:
            answer = self._value(self._connection.post(f"/{question}", encode(request, TYPES), patience=5.0))
        except TwinkleError as error:
            return error
        found: Exception | None = self._decoded(answer["error"]) if answer else None
        return found

    def read_rows(self, pieces: Sequence[RowsOfRank], timeout: float | None) -> tuple[Any, int]:
        """The rows of several ranks, joined."""
        message = encode({"pieces": rows_named(pieces)}, TYPES)
        return self._opened(*self._connection.read("POST", "/rows", timeout, message))

    def _read_result(self, name: str, timeout: float | None) -> tuple[Any, int]:
        return self._opened(*self._connection.read("GET", f"/values/{name}", timeout))

    def _opened(self, answer: Answer, size: int) -> tuple[Any, int]:
        tree, buffers = answer
        value = value_of(tree, buffers, TYPES, named=self._reader.value, read_only=True)
        if isinstance(value, dict) and value.keys() == {"error"} and isinstance(value["error"], bytes):
            raise self._decoded(value["error"])
        return value, size

    def _decoded(self, data: bytes) -> Any:
        return decode([data], TYPES, named=self._reader.value, read_only=True)

    def _value(self, data: bytes) -> Any:
        return decode((data,), TYPES)

    def _made(self, node: list[Any]) -> Any:
        """A handle."""
        if node[0] != "handle" or len(node) != 6:
            raise WireFormatError(f"a node {node[0]!r:.40} is not known")
        _, name, group, instance, mesh, ranks = node
        cls = self._classes.get(name) or loaded_component_type(name)
        if cls is None:
            raise WireFormatError(f"the class {name!r:.120} of a handle is not loaded here: import it first")
        return make_handle(cls, Component(group, instance, cls.__name__, tuple(ranks), mesh))

    def _take_dropped(self) -> list[str]:
        return [self._dropped.popleft() for _ in range(min(_DROPPED_AT_ONCE, len(self._dropped)))]

    def close(self) -> None:
        """Release everything that this client holds on the server."""
        if not self._closed.is_set():
            self._closed.set()
            self._poller.end()
            self._connection.close()


class ServedTool:
    """A tool at the server.

    Args:
        name: Its id there.
        ask: Sends a request about it and waits for the answer.
    """

    def __init__(self, name: str, ask: Callable[[str, tuple[Any, ...], Mapping[str, Any]], Any]) -> None:
        self._name = name
        self._ask = ask

    def call(self, method: str, *args: Any) -> Any:
        """Do something, and wait for its end."""
        return self._ask(self._name, (method, *args), {})

    def close(self) -> None:
        """Release what it holds."""
        self._ask(self._name, ("close",), {})

    def __repr__(self) -> str:
        return f"<{self._name} at the server>"
