"""The HTTP backend: the components of a server's session; to their client each is one worker.

A task carries the whole call: the server's session divides it, collects its value, and keeps its deadline. Results are
names, which stay at the server until they are read; a call takes them as arguments by their names.
"""

from __future__ import annotations

import contextlib
from itertools import count
from typing import TYPE_CHECKING, Any

from twinkle_http.client.connection import Connection, Poller
from twinkle_http.client.results import ArgumentPlans, ServedPayload, ServedReply, ServedStore
from twinkle_http.messages import CallRequest, CallUpdate, ResultRequest, unpacked
from twinkle_http.types import register_annotated
from twinkle_http.wire import Writer, decode, encode, framed
from twinkle_remote.backends.support import call_line, component_of, ping
from twinkle_remote.errors import AlreadyInitializedError, DispatchError, PlacementError, TwinkleError
from twinkle_remote.protocol import Backend, WorkerGroup, WorkerInfo
from twinkle_remote.rows import component_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_remote.protocol import InputReplies, Reply, Task

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
        """Send a call; returns when the server has sent it to its workers. Functions do not travel."""
        if tasks[0].kind in ("function", "beside") and tasks[0].target is not ping:
            raise DispatchError(
                f"{tasks[0].name}: a function (also of `map`) cannot be sent over HTTP; make it a remote function"
            )
        return [self._backend.send_task(self.name, tasks[0], inputs)]

    def cancel(self, replies: Sequence[Reply]) -> None:
        """Have the server cancel calls on event loops, and calls that have not begun."""
        for one in replies:
            assert isinstance(one, ServedReply)
            with contextlib.suppress(TwinkleError):  # a server that is gone runs nothing
                self._backend.cancel(ResultRequest(one.payload.name, withdraw=True))


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
        described = decode(self._connection.post("/open", encode({}), patience=min(patience, 10.0)))
        self._connection.client = described["client"]
        self._max_body: int = described["max_body"]
        self._any_group: bool = described["any_group"]
        self._groups = {name: ServedGroup(name, self) for name in described["groups"]}
        self.store = ServedStore(self._connection)
        try:
            _check_groups(groups, described["groups"])
        except AlreadyInitializedError:
            self._connection.close()
            raise
        self._poller: Poller | None = Poller(self._connection, described["lease"] / 3, self.store.take_dropped)

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
        kind, target, line = str(task.kind), task.target, call_line()
        if kind == "create":
            register_annotated(target)
            self.store.classes[component_name(target)] = target
            target = component_name(target)
        elif kind == "function":
            kind, target = "ping", None
        request = CallRequest(kind, group, task.instance, target or "", line=line, eager=task.eager)
        return self.send(request, task.name, task.args, task.kwargs, ArgumentPlans(task, inputs))

    def send(
        self,
        request: CallRequest,
        what: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        lazies: ArgumentPlans | None = None,
    ) -> ServedReply:
        """Send a request with its arguments; returns when the server has begun it."""
        if self._poller is None:
            raise PlacementError(f"the session at {self.address} has ended")
        self._poller.check()

        def tag(value: Any, part: Callable[[Any], Any]) -> list[Any] | None:
            component = component_of(value)
            if component is not None:
                return ["handle", component.group, component.instance]
            return None if lazies is None else lazies.tag(value, part)

        writer = Writer(named=tag)
        request.args = writer.tree(list(args), f"{what}['args']", 1)
        request.kwargs = writer.tree(dict(kwargs), f"{what}['kwargs']", 1)
        number = self._connection.number()
        try:
            request.floor, request.drop = self._connection.floor(), self.store.take_dropped()
            message = framed(request, writer.buffers, what=what)
            if message.nbytes > self._max_body:
                self.store.dropped.extend(request.drop)
                raise DispatchError(
                    f"{what}: the arguments have {message.nbytes} bytes, and the server takes {self._max_body}; make "
                    "several calls, or serve(max_body=...)"
                )
            payload = ServedPayload(f"r{number}", self.store.dropped)
            request_id, used = f"{self._connection.client[-8:]}-{number}", () if lazies is None else lazies.used
            reply = ServedReply(payload, request_id, message.nbytes, used, self.store)
            self._poller.expect(number, reply)
            update = unpacked(self._connection.post("/call", message, number), CallUpdate)
            if update.unsent and update.error is not None:
                raise self.store.decoded(update.error)
            self._poller.answered(update)
            return reply
        except BaseException:
            self._poller.forget(number)
            raise
        finally:
            self._connection.answered(number)

    def cancel(self, request: ResultRequest) -> None:
        """Have the server cancel a call; raises TwinkleError where it does not answer."""
        self._connection.post("/cancel", framed(request), patience=5.0)

    def tool(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ServedTool:
        """A tool next to the server's session."""
        made = ServedTool(f"{name}-{next(_tools)}", self)
        made.call(name, *args, **kwargs)
        return made

    def close(self) -> None:
        """Release everything that this client holds on the server."""
        if self._poller is not None:
            self._poller.end()
            self._poller = None
            self._connection.close()


class ServedTool:
    """A tool at the server, by the name that this client gave it."""

    def __init__(self, name: str, backend: HttpBackend) -> None:
        self._name, self._backend = name, backend

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Do something, and wait for its end; the first call makes the tool."""
        request = CallRequest("tool", target=self._name, line=call_line(), eager=True)
        outcome = self._backend.send(request, method, (method, *args), kwargs).result()
        if outcome.failure is None:
            return self._backend.store.get(outcome.payload)[0]
        raise outcome.failure.exception() or TwinkleError(outcome.failure.message)

    def close(self) -> None:
        """Release what it holds."""
        self.call("close")


def _check_groups(wanted: Sequence[DeviceGroup], described: Mapping[str, int]) -> None:
    """Raise AlreadyInitializedError where the groups of the program are not the server's."""
    for group in wanted:
        there = described.get(group.name)
        if there is None:
            known = ", ".join(described) or "none"
            raise AlreadyInitializedError(f"the server has no group {group.name!r}; it has {known}")
        if there != group.num_workers:
            raise AlreadyInitializedError(
                f"group {group.name!r} is another one at the server: {there} workers there, {group.num_workers} here"
            )
