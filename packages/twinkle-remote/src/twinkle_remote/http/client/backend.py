"""The HTTP backend: groups of workers behind a URL."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from twinkle_remote.backends.thread_reply import ThreadReply, wait_for_any
from twinkle_remote.call.lazy import Lazy, calls_of
from twinkle_remote.call.pending_whole_call import PendingWholeCall
from twinkle_remote.component.handle import make_handle
from twinkle_remote.errors import AlreadyInitializedError, DispatchError, PlacementError, TwinkleError
from twinkle_remote.http.client.connection import Connection, refused
from twinkle_remote.http.client.news import NewsReader
from twinkle_remote.http.client.replies import ServedReply
from twinkle_remote.http.loaded import loaded_component_type, loaded_error_type
from twinkle_remote.http.nodes import NodeReader, NodeWriter
from twinkle_remote.http.registered import TYPES, register_annotated
from twinkle_remote.http.wire.decode import decode, value_of
from twinkle_remote.http.wire.encode import encode
from twinkle_remote.http.wire.errors import WireFormatError, WireTypeError
from twinkle_remote.http.wire.type_names import name_of
from twinkle_remote.protocol.backend import WorkerGroup
from twinkle_remote.protocol.component import Component, component_of, is_handle
from twinkle_remote.protocol.failure import WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_remote.http.client.connection import Answer
    from twinkle_remote.protocol.backend import InputReplies, Reply
    from twinkle_remote.protocol.defaults import SessionDefaults
    from twinkle_remote.protocol.messages import Outcome, Task
    from twinkle_remote.protocol.whole_calls import WholeCall

_DROPPED_AT_ONCE = 1000
_WITH_A_CALL = 32


class ServedGroup(WorkerGroup):
    """A group of the server's session."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._name

    @property
    def size(self) -> int:
        """Number of workers."""
        return self._size

    def info(self, rank: int) -> WorkerInfo:
        """Identity of the worker of a rank, as far as it is known here."""
        return WorkerInfo(self._name, rank, self._size)

    def submit(self, rank: int, task: Task, inputs: InputReplies) -> Reply:
        """Not used: calls go undivided."""
        raise DispatchError(f"{task.name}: a call over HTTP goes undivided")

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """No stacks: the server puts them into its errors."""
        return {}


class ServedStore:
    """Reads results from the server."""

    def __init__(self, read: Callable[[ServedReply, float | None], tuple[Any, int]]) -> None:
        self._read = read

    def put(self, value: object) -> None:
        """Nothing is stored: the value travels with the call."""
        return

    def get(
        self, ref: object, start: int | None = None, stop: int | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """The value of a result, and the bytes that came for it."""
        assert isinstance(ref, ServedReply) and start is None
        return self._read(ref, timeout)

    def keep(self, value: object) -> tuple[object, int]:
        """The value itself."""
        return value, 0

    def outlives_worker(self, payload: object) -> bool:
        """False: the server's session says what is left."""
        return False


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
    ) -> None:
        self._connection = Connection(address, token, tls=tls, insecure=insecure, patience=patience)
        described = self._value(self._connection.post("/open", encode({}, TYPES), patience=min(patience, 10.0)))
        self._connection.client = described["client"]
        self.start_timeout: float | None = described["start_timeout"]
        self._max_body = described["max_body"]
        self._any_group = described["mode"] == "local" and not described["groups"]
        self._groups = {one["name"]: ServedGroup(one["name"], one["size"]) for one in described["groups"]}
        self._store = ServedStore(self._read_result)
        self._dropped: deque[str] = deque()
        self._classes: dict[str, type] = {}
        self._reader = NodeReader(loaded_error_type, self._made)
        self._writer = NodeWriter(TYPES, lambda value, part: None)
        self._closed = threading.Event()
        try:
            _check_groups(groups, described["groups"])
        except AlreadyInitializedError:
            self._connection.close()
            raise
        self._news = NewsReader(self._connection, described["lease"] / 3, self._take_dropped, self._value)

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
        if call.kind == "function":
            raise DispatchError(
                f"{call.name}: a function does not travel over HTTP; make it a remote function of {call.component.name}"
            )
        if call.kind in ("generate", "item", "close"):
            raise DispatchError(
                f"{call.name} is a generator, whose items do not travel over HTTP: return a list, or give "
                f"{call.component.name} __iter__ and __next__"
            )
        self._news.check()
        number = self._connection.number()
        try:
            message = encode(
                self._request(call), TYPES, what=call.name, named=NodeWriter(TYPES, self._describer(call)).node
            )
            if message.nbytes > self._max_body:
                raise DispatchError(
                    f"{call.name}: the arguments have {message.nbytes} bytes, and the server takes {self._max_body}; "
                    "make several calls, or serve(max_body=...)"
                )
            answer = self._value(self._connection.post("/call", message, number))
        finally:
            self._connection.answered(number)
        return self._accepted(answer, message.nbytes)

    def _request(self, call: WholeCall) -> dict[str, Any]:
        component = call.component
        target = call.target
        if call.kind == "create":
            register_annotated(target)
            self._classes[name_of(target)] = target
            target = name_of(target)
        return {
            "kind": call.kind,
            "group": component.group,
            "instance": component.instance,
            "mesh": component.mesh if call.kind == "create" else None,
            "target": target,
            "args": list(call.args),
            "kwargs": dict(call.kwargs),
            "line": call.line,
            "floor": self._connection.floor(),
            "drop": self._take_dropped() if len(self._dropped) >= _WITH_A_CALL else [],
        }

    def _describer(self, call: WholeCall) -> Callable[[Any, Callable[[Any], Any]], list[Any] | None]:
        """Describes the lazy results and the handles among the arguments of a call."""

        def node(value: Any, part: Callable[[Any], Any]) -> list[Any] | None:
            if type(value) is Lazy:
                call.lazies.append(value)
                return ["lazy", _name_of_result(value)]
            if is_handle(value):
                component = component_of(value)
                assert component is not None
                return ["handle", component.group, component.instance]
            return None

        return node

    def _accepted(self, answer: Mapping[str, Any], sent: int) -> ServedReply:
        if "refused" in answer:
            given = answer["refused"]
            raise refused(given["type"], given["message"], given["status"], self._connection.address)
        if "error" in answer:
            raise self._decoded(answer["error"])
        reply = ServedReply(answer["name"], sent, self._decoded, self._ask, self._dropped)
        news = answer["news"]
        if news is not None:
            reply.take(news)
        if not reply.end.done():
            self._news.expect(reply)
        return reply

    def _ask(self, question: str, name: str, seconds: float | None) -> Exception | None:
        request = {"name": name, "seconds": float(seconds or 0.0)}
        try:
            answer = self._value(self._connection.post(f"/{question}", encode(request, TYPES), patience=5.0))
        except TwinkleError as error:
            return error
        found: Exception | None = self._decoded(answer["error"]) if answer else None
        return found

    def _read_result(self, reply: ServedReply, timeout: float | None) -> tuple[Any, int]:
        if reply.value is not None:
            return self._decoded(reply.value), len(reply.value)
        (tree, buffers), size = self._connection.get(f"/values/{reply.name}", timeout)
        value = value_of(tree, buffers, TYPES, named=self._reader.value, read_only=True)
        if isinstance(value, dict) and value.keys() == {"error"} and isinstance(value["error"], bytes):
            raise self._decoded(value["error"])
        return value, size

    def _decoded(self, data: bytes) -> Any:
        return decode([data], TYPES, named=self._reader.value, read_only=True)

    def _value(self, answer: Answer) -> Any:
        return value_of(*answer, TYPES)

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


def _name_of_result(lazy: Lazy[Any]) -> str:
    calls = calls_of(lazy)
    whole = calls[0] if len(calls) == 1 else None
    if not isinstance(whole, PendingWholeCall) or not isinstance(whole.whole, ServedReply):
        raise WireTypeError(f"{lazy!r} is no result of one call of this server: pass its value, get(x)")
    return whole.whole.name


def _check_groups(wanted: Sequence[DeviceGroup], described: Sequence[Mapping[str, Any]]) -> None:
    """Check that the groups of the program are the server's.

    Raises:
        AlreadyInitializedError: They differ; the message shows how.
    """
    fields = ("name", "ranks", "device_type", "visible_devices", "gpus_per_worker")
    have = {one["name"]: {field: one[field] for field in fields} for one in described}
    for group in wanted:
        own = {field: getattr(group, field) for field in fields}
        there = have.get(group.name)
        if there is None:
            raise AlreadyInitializedError(f"the server has no group {group.name!r}; it has {', '.join(have) or 'none'}")
        changed = [field for field in fields if _plain(own[field]) != _plain(there[field])]
        if changed:
            listing = "; ".join(f"{field}: {there[field]!r} there, {own[field]!r} here" for field in changed)
            raise AlreadyInitializedError(f"group {group.name!r} is another one at the server ({listing})")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple | range) else value
