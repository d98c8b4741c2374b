"""The HTTP backend: groups of workers behind a URL."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from twinkle_remote.backends.thread_reply import ThreadReply, wait_for_any
from twinkle_remote.component.handle import make_handle
from twinkle_remote.errors import AlreadyInitializedError, DispatchError, PlacementError, TwinkleError
from twinkle_remote.failures.frames import driver_line
from twinkle_remote.http.client.connection import Connection, refused
from twinkle_remote.http.client.group import ServedGroup, check_groups
from twinkle_remote.http.client.names import namer, rows_named
from twinkle_remote.http.client.news import NewsReader
from twinkle_remote.http.client.replies import ServedReply
from twinkle_remote.http.client.store import ServedStore
from twinkle_remote.http.client.tool import ServedTool
from twinkle_remote.http.loaded import loaded_component_type, loaded_error_type
from twinkle_remote.http.nodes import NodeReader, NodeWriter
from twinkle_remote.http.registered import TYPES, component_name, register_annotated
from twinkle_remote.http.wire.decode import decode, value_of
from twinkle_remote.http.wire.encode import encode, encode_request
from twinkle_remote.http.wire.envelopes import CALL_NEWS, RANKS_ANSWER, CallRequest, unpacked
from twinkle_remote.http.wire.errors import WireFormatError
from twinkle_remote.protocol.component import Component
from twinkle_remote.worker.present import present

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_remote.http.client.connection import Answer
    from twinkle_remote.http.client.rank_replies import ServedRanks
    from twinkle_remote.http.wire.envelopes import CallNews, RanksAnswer
    from twinkle_remote.protocol.backend import Reply, WorkerGroup
    from twinkle_remote.protocol.defaults import SessionDefaults
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.whole_calls import RowsOfRank, WholeCall

_DROPPED_AT_ONCE = 1000
_WITH_A_CALL = 32
_tools = count()


class HttpBackend:
    """The session of a server.

    Args:
        groups: The groups that the program expects; they must be the server's. None of them means all.
        seed: Not used: the server's session has its own.
        address: URL of the server.
        token: The server's token.
        tls: File with the certificates to trust; None for those of the system.
        insecure: Plain HTTP beyond this machine is accepted.
        patience: Seconds for which a lost connection is tried again.
        compress: Values travel compressed, both ways: for slow links, and values that compress.
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
        self.can_revive: bool = described["can_revive"]
        self._any_group = described["mode"] == "local" and not described["groups"]
        self._groups = {one["name"]: ServedGroup(one["name"], one["size"]) for one in described["groups"]}
        self._store = ServedStore(self._read_result, self.read_rows, self._decoded)
        self._dropped: deque[str] = deque()
        self._classes: dict[str, type] = {}
        self._reader = NodeReader(loaded_error_type, self._made)
        self._writer = NodeWriter(TYPES, lambda value, part: None)
        self._closed = threading.Event()
        try:
            check_groups(groups, described["groups"])
        except AlreadyInitializedError:
            self._connection.close()
            raise
        self._news = NewsReader(self._connection, described["lease"] / 3, self._take_dropped, self._renewed)

    @property
    def store(self) -> ServedStore:
        """Reads results."""
        return self._store

    def group(self, name: str) -> ServedGroup:
        """A group of the server's session."""
        if self._any_group:
            self._groups.setdefault(name, ServedGroup(name, 1))
        if name not in self._groups:
            known = ", ".join(map(repr, self._groups)) or "none"
            raise PlacementError(f"there is no group {name!r}; the server at {self._connection.address} has {known}")
        return self._groups[name]

    def call_whole(self, call: WholeCall) -> ServedReply:
        """Send a call."""
        return self._taken(*self._sent(call))

    def call_by_rank(self, call: WholeCall) -> ServedRanks:
        """Send a call whose ranks' answers are wanted one by one."""
        news, sent = self._sent(call)
        reply = self._reply(news, sent)
        found = reply.ranks(call.ranks, news.each)
        self._take(reply, news)
        return found

    def built(self, component: Component, reply: Reply) -> Component:
        """A component with the ranks and the mesh that it has at the server."""
        assert isinstance(reply, ServedReply)
        assert reply.outcome is not None
        place, _ = self._store.get(reply.outcome.payload)
        return replace(component, ranks=tuple(place["ranks"]), mesh=place["mesh"])

    def _sent(self, call: WholeCall) -> tuple[CallNews, int]:
        """The server's answer to a call, and the bytes that were sent."""
        if call.kind == "function" and call.target is not present:
            raise DispatchError(
                f"{call.name}: a function does not travel over HTTP; make it a remote function of {call.component.name}"
            )
        return self._numbered(self._request(call), call.name, call.lazies)

    def _numbered(self, request: CallRequest, what: str, lazies: list[Any]) -> tuple[CallNews, int]:
        """The server's answer to a request that runs once, and the bytes that were sent."""
        self._news.check()
        args, kwargs = request.args, request.kwargs
        dropped = self._take_dropped() if len(self._dropped) >= _WITH_A_CALL else []
        news, sent = self._posted(request, what, lazies, dropped)
        if news.refused is not None and news.refused.type == "TooMany" and self._dropped:
            request.args, request.kwargs = args, kwargs
            news, sent = self._posted(request, what, lazies, self._take_dropped())  # what was dropped makes room
        if news.refused is not None:
            given, address = news.refused, self._connection.address
            raise refused(given.type, f"{given.message} (request {given.request})", given.status, address)
        if news.unsent is not None:
            raise self._decoded(news.unsent)
        return news, sent

    def _posted(self, request: CallRequest, what: str, lazies: list[Any], dropped: list[str]) -> tuple[CallNews, int]:
        number = self._connection.number()
        request.drop = dropped
        try:
            request.floor = self._connection.floor()
            message = encode_request(request, TYPES, what=what, named=NodeWriter(TYPES, namer(what, lazies)).node)
            size = message.nbytes
            if size > self._max_body:
                raise DispatchError(
                    f"{what}: the arguments have {size} bytes, and the server takes {self._max_body}; "
                    "make several calls, or serve(max_body=...)"
                )
            news = unpacked(self._connection.post("/call", message, number), CALL_NEWS)
        except BaseException:
            self._dropped.extend(dropped)
            raise
        finally:
            self._connection.answered(number)
        return news, size

    def tool(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ServedTool:
        """A tool beside the server's session."""
        made = f"{name}-{self._connection.client}-{next(_tools)}"
        self._ask_tool(made, (name, *args), kwargs)
        return ServedTool(made, self._ask_tool)

    def _ask_tool(self, tool: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Send a request about a tool, and wait for the answer."""
        request = CallRequest("tool", target=tool, args=list(args), kwargs=dict(kwargs), line=driver_line())
        return self._done(request, str(args[0]))

    def revive(self, name: str, ranks: Sequence[int]) -> None:
        """Have the server start other workers in the places of those that have ended."""
        self._done(CallRequest("revive", name, ranks=list(ranks), line=driver_line()), f"new workers of {name!r}")

    def _renewed(self, name: str, ranks: Sequence[int]) -> None:
        """Other workers have these ranks."""
        self.group(name).renewed(ranks)

    def _done(self, request: CallRequest, what: str) -> Any:
        """Send a request, and wait for what it returns."""
        reply = self._taken(*self._numbered(request, what, []))
        while not self.wait([reply.end], None):
            continue
        assert reply.outcome is not None
        if reply.outcome.failure is not None:
            raise reply.error()
        return self._store.get(reply.outcome.payload)[0]

    def _request(self, call: WholeCall) -> CallRequest:
        component = call.component
        kind: str = call.kind
        target = call.target
        if kind == "create":
            register_annotated(target)
            name = component_name(target)
            self._classes[name] = target
            target = name
        elif kind == "function":
            kind, target = "present", None
        elif kind == "generate":
            target = list(target)
        request = CallRequest(
            kind, component.group, component.instance, target, list(call.args), dict(call.kwargs), line=call.line
        )
        if kind == "create":
            request.mesh = component.mesh
        if call.by_rank or kind in ("item", "close"):
            request.ranks, request.by_rank, request.timeout = list(call.ranks), call.by_rank, call.timeout
            request.read = self._news.read
        return request

    def _taken(self, news: CallNews, sent: int) -> ServedReply:
        reply = self._reply(news, sent)
        self._take(reply, news)
        return reply

    def _reply(self, news: CallNews, sent: int) -> ServedReply:
        return ServedReply(news.name, sent, self._decoded, self._ask, self._ask_ranks, self._dropped)

    def _take(self, reply: ServedReply, news: CallNews) -> None:
        reply.take(news)
        if not reply.end.done():
            self._news.expect(reply)

    def _ask(self, question: str, name: str, seconds: float | None) -> Exception | None:
        request = {"name": name, "seconds": float(seconds or 0.0)}
        try:
            answer = self._value(self._connection.post(f"/{question}", encode(request, TYPES), patience=5.0))
        except TwinkleError as error:
            return error
        found: Exception | None = self._decoded(answer["error"]) if answer else None
        return found

    def _ask_ranks(self, name: str) -> RanksAnswer:
        return unpacked(self._connection.post("/ranks", encode({"name": name}, TYPES)), RANKS_ANSWER)

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

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done."""
        return wait_for_any([reply for reply in replies if isinstance(reply, ThreadReply)], timeout)

    def when_done(self, reply: Reply, notify: Callable[[], None]) -> bool:
        """Call a function when a reply is done."""
        assert isinstance(reply, ThreadReply)
        reply.when_done(lambda _: notify())
        return True

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        assert isinstance(reply, ThreadReply) and reply.outcome is not None
        return reply.outcome

    def configure(self, defaults: SessionDefaults) -> None:
        """Nothing: the server's session has its own."""

    def attached(self) -> Sequence[WorkerGroup]:
        """None: the server's session asks its workers."""
        return ()

    def after_fork(self) -> bool:
        """False: a forked process does not share the connections."""
        return False

    def close(self) -> None:
        """Release what this client holds at the server."""
        if not self._closed.is_set():
            self._closed.set()
            self._news.end()
            self._connection.close()
