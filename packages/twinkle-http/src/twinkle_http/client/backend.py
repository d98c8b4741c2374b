"""The HTTP backend: the components of a server's session; to their client each is one worker.

A task carries the whole call: the server's session divides it, collects its value, and keeps its deadline. Results are
names, which stay at the server until they are read; a call takes them as arguments by their names.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from twinkle_http.client.connection import Connection, refused
from twinkle_http.client.poller import Poller
from twinkle_http.client.results import ServedPayload, ServedReply, ServedStore
from twinkle_http.client.tables import ArgumentPlans, as_wire
from twinkle_http.messages import CALL_UPDATE, CallRequest, ResultRequest, WireFormatError, framed, unpacked
from twinkle_http.types import loaded_component_type, loaded_error_type, register_annotated
from twinkle_http.wire import Writer, decode, encode, value_of
from twinkle_remote.backends.support import call_line, component_of, make_handle, ping
from twinkle_remote.errors import AlreadyInitializedError, DispatchError, PlacementError, TwinkleError
from twinkle_remote.protocol import Backend, Component, WorkerGroup, WorkerInfo
from twinkle_remote.rows import TYPES, component_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_http.messages import CallUpdate
    from twinkle_mesh import DeviceGroup
    from twinkle_remote.protocol import Columns, InputReplies, Reply, Rows, Task

_DROPPED_AT_ONCE = 1000
_tools = count()


class ServedGroup(WorkerGroup):
    """A group of the server's session: one worker, which divides calls itself."""

    size, undivided = 1, True

    def __init__(self, name: str, backend: HttpBackend) -> None:
        self.name, self._backend = name, backend

    def info(self, rank: int) -> WorkerInfo:
        """Identity of the server."""
        return WorkerInfo(self.name, rank, 1, self._backend.address)

    def submit(
        self, ranks: Sequence[int], tasks: Sequence[Task], of_rank: Sequence[int], inputs: InputReplies
    ) -> Sequence[Reply]:
        """Send a call; returns when the server has sent it to its workers."""
        return [self._backend.send_task(self.name, tasks[0], inputs)]

    def prepare(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """The tasks; functions do not travel."""
        for task in tasks:
            if task.kind == "function" and task.target is not ping:
                raise DispatchError(
                    f"{task.name}: a function (also of `map`) cannot be sent over HTTP; make it a remote function"
                )
        return tasks

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """None without a call."""
        return {}

    def stacks_of(self, replies: Sequence[Reply]) -> Mapping[int, str]:
        """Where the workers are that have not answered, as the server says it."""
        return {one.rank: self._backend.ask("/stacks", one) or "" for one in replies}

    def cancel(self, replies: Sequence[Reply]) -> None:
        """Have the server cancel calls on event loops."""
        for one in replies:
            self._backend.ask("/cancel", one)

    def withdraw(self, replies: Sequence[Reply]) -> None:
        """Have the server cancel calls, also where they have not begun."""
        for one in replies:
            self._backend.ask("/cancel", one, withdraw=True)


class HttpBackend(Backend):
    """The session of a server.

    Args:
        groups: The groups that the program expects; they must be the server's. None of them means all.
        seed: Not used, because the server's session has its own seed.
        address: URL of the server.
        token: The server's token.
        tls: File with the certificates to trust; None for those of the system.
        insecure: Plain HTTP beyond this machine is accepted.
        patience: Seconds for which the client retries a lost connection.

    Attributes:
        address: As given.
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
        self.address = address
        self._connection = Connection(address, token, tls=tls, insecure=insecure, patience=patience)
        described = decode((self._connection.post("/open", encode({}, TYPES), patience=min(patience, 10.0)),), TYPES)
        self._connection.client = described["client"]
        self._max_body: int = described["max_body"]
        self._any_group: bool = described["any_group"]
        self._groups = {name: ServedGroup(name, self) for name in described["groups"]}
        self._dropped: deque[str] = deque()
        self._classes: dict[str, type] = {}
        self._reading: Any = {"named": self._made, "error_type": loaded_error_type, "read_only": True}
        self.store = ServedStore(self._read, self._decoded)
        self._closed = threading.Event()
        try:
            _check_groups(groups, described["groups"])
        except AlreadyInitializedError:
            self._connection.close()
            raise
        self._poller = Poller(self._connection, described["lease"] / 3, self._take_dropped)

    def group(self, name: str) -> ServedGroup:
        """A group of the server's session."""
        if self._any_group:
            self._groups.setdefault(name, ServedGroup(name, self))
        if name not in self._groups:
            known = ", ".join(map(repr, self._groups)) or "none"
            raise PlacementError(f"there is no group {name!r}; the server at {self.address} has {known}")
        return self._groups[name]

    def send_task(self, group: str, task: Task, inputs: InputReplies) -> ServedReply:
        """Send a call.

        Raises:
            TwinkleError: It cannot be sent, the server refuses it, or its session could not send it to its workers.
        """
        kind: str = task.kind
        target = task.target
        if kind == "create":
            register_annotated(target)
            name = component_name(target)
            self._classes[name] = target
            target = name
        elif kind == "function":
            kind, target = "ping", None
        request = CallRequest(
            kind, group, task.instance, target, list(task.args), dict(task.kwargs), call_line(), task.eager
        )
        return self._sent(request, task.name, ArgumentPlans(task, inputs))

    def _sent(self, request: CallRequest, what: str, lazies: ArgumentPlans | None = None) -> ServedReply:
        self._poller.check()

        def tag(value: Any, part: Callable[[Any], Any]) -> list[Any] | None:
            component = component_of(value)
            if component is not None:
                return ["handle", component.group, component.instance]
            return None if lazies is None else lazies.tag(value, part)

        writer = Writer(TYPES, tag)
        args = writer.tree(request.args, f"{what}['args']", 1)
        kwargs = writer.tree(request.kwargs, f"{what}['kwargs']", 1)
        number = self._connection.number()
        try:
            floor, drop = self._connection.floor(), self._take_dropped()
            trees = msgspec.structs.replace(request, args=args, kwargs=kwargs, floor=floor, drop=drop)
            message = framed(trees, writer.buffers, what=what)
            if message.nbytes > self._max_body:
                self._dropped.extend(drop)
                raise DispatchError(
                    f"{what}: the arguments have {message.nbytes} bytes, and the server takes {self._max_body}; make "
                    "several calls, or serve(max_body=...)"
                )
            update = unpacked(self._connection.post("/call", message, number), CALL_UPDATE)
        finally:
            self._connection.answered(number)
        return self._begun(update, message.nbytes, () if lazies is None else lazies.used)

    def _begun(self, update: CallUpdate, sent: int, used: Sequence[ServedPayload]) -> ServedReply:
        """The reply of a call that the server has taken."""
        if update.refused is not None:
            given = update.refused
            raise refused(given.type, f"{given.message} (request {given.request})", given.status, self.address)
        if update.unsent is not None:
            raise self._decoded(update.unsent)
        payload = ServedPayload(update.name, self._dropped)
        request = f"{self._connection.client[-8:]}-{update.name[1:]}"
        reply = ServedReply(payload, request, sent, used, self._decoded)
        if update.accepted:
            self._poller.expect(reply)
        else:
            reply.take(update)
        return reply

    def ask(self, path: str, reply: Reply, *, withdraw: bool = False) -> Any:
        """Ask the server something about a call; None if it does not answer."""
        assert isinstance(reply, ServedReply)
        request = framed(ResultRequest(reply.payload.name, withdraw=withdraw))
        try:
            data = self._connection.post(path, request, patience=5.0)
            return decode((data,), TYPES) if data else None
        except TwinkleError:
            return None

    def tool(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ServedTool:
        """A tool next to the server's session."""
        made = f"{name}-{next(_tools)}"
        self._ask_tool(made, (name, *args), kwargs)
        return ServedTool(made, self._ask_tool)

    def _ask_tool(self, tool: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Send a request about a tool, and wait for the answer."""
        request = CallRequest("tool", target=tool, args=list(args), kwargs=dict(kwargs), line=call_line(), eager=True)
        reply = self._sent(request, str(args[0]))
        outcome = reply.result()
        if outcome.failure is None:
            return self.store.get(outcome.payload)[0]
        error = outcome.failure.exception()
        raise TwinkleError(outcome.failure.message) if error is None else error

    def _read(self, name: str, rows: Rows | None, columns: Columns | None, timeout: float | None) -> tuple[Any, int]:
        writer = Writer(TYPES)
        given = [None if rows is None else as_wire(rows), None if columns is None else list(columns)]
        trees = [writer.tree(one, "what is read", 1) for one in given]
        message = framed(ResultRequest(name, *trees), writer.buffers)
        root, buffers, size = self._connection.read("/read", message, timeout)
        value = value_of(root, buffers, TYPES, **self._reading)
        if isinstance(value, dict) and value.keys() == {"error"} and isinstance(value["error"], bytes):
            raise self._decoded(value["error"])
        return value, size

    def _decoded(self, data: bytes) -> Any:
        return decode([data], TYPES, **self._reading)

    def _made(self, node: list[Any]) -> Any:
        """A handle."""
        if node[0] != "handle" or len(node) != 4:
            raise WireFormatError(f"a node {node[0]!r:.40} is not known")
        _, name, group, instance = node
        cls = self._classes.get(name) or loaded_component_type(name)
        if cls is None:
            raise WireFormatError(f"the class {name!r:.120} of a handle is not loaded here: import it first")
        return make_handle(cls, Component(group, instance, cls.__name__, (0,), None))

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
        self._name, self._ask = name, ask

    def call(self, method: str, *args: Any) -> Any:
        """Do something, and wait for its end."""
        return self._ask(self._name, (method, *args), {})

    def close(self) -> None:
        """Release what it holds."""
        self._ask(self._name, ("close",), {})


def _check_groups(wanted: Sequence[DeviceGroup], described: Mapping[str, Sequence[Any]]) -> None:
    """Check that the groups of the program are the server's.

    Raises:
        AlreadyInitializedError: They differ; the message shows how.
    """
    fields = ("ranks", "device_type", "visible_devices", "gpus_per_worker", "nodes")
    for group in wanted:
        if group.name not in described:
            known = ", ".join(described) or "none"
            raise AlreadyInitializedError(f"the server has no group {group.name!r}; it has {known}")
        here = {field: _plain(getattr(group, field)) for field in fields}
        there = dict(zip(fields, map(_plain, described[group.name]), strict=True))
        if changed := [field for field in fields if here[field] != there[field]]:
            listing = "; ".join(f"{field}: {there[field]!r} there, {here[field]!r} here" for field in changed)
            raise AlreadyInitializedError(f"group {group.name!r} is another one at the server ({listing})")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple | range) else value
