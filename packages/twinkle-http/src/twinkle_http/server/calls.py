"""The calls of clients: a request becomes a call of the session, or work next to it.

A request names only what its client holds: its components, and its results. The session divides the call, collects its
value, and keeps its deadline, as for its own program.
"""

from __future__ import annotations

import logging
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from twinkle_http.errors import WireFormatError, own_error_type, refused
from twinkle_http.gate import RefusedError
from twinkle_http.messages import CallUpdate
from twinkle_http.server.components import placement
from twinkle_http.server.ends import READ_SECONDS, Ends, ServedCall, in_own_thread
from twinkle_http.wire import encode, value_of
from twinkle_remote import Replicate, concat, join, select, take
from twinkle_remote.backends.serving import (
    called_from,
    presence,
    release_all,
    remote_function,
    start,
)
from twinkle_remote.backends.support import Lazy
from twinkle_remote.errors import BackendError, NotInitializedError, PlacementError, TwinkleError
from twinkle_remote.protocol import component_of
from twinkle_remote.rows import selected_where_there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twinkle_http.messages import CallRequest, ResultRequest
    from twinkle_http.server.clients import RemoteClient
    from twinkle_http.server.components import Components
    from twinkle_http.server.ends import Ended
    from twinkle_http.wire import WireMessage
    from twinkle_remote.backends.serving import ServedSession
    from twinkle_remote.protocol import Call

    Arguments = tuple[list[Any], dict[str, Any]]

_LONGEST_LINE = 300
_STEPS = {"iterate": "__iter__", "next": "__next__"}
_log = logging.getLogger("twinkle.http")


class Calls:
    """Makes calls in the session of this process."""

    def __init__(self, session: ServedSession, components: Components) -> None:
        self.ends = Ends(session, components)
        self._session, self._components = session, components

    def make(self, client: RemoteClient, number: int, request: CallRequest, buffers: Iterator[memoryview]) -> None:
        """Make a call, in the client's thread; one that cannot be made is its update."""
        request_id = f"{client.name[-8:]}-{number}"
        line = f"{request.line:.{_LONGEST_LINE}}, request {request_id}"
        update = CallUpdate(number, accepted=True)
        try:
            client.use.check("calls", "results")
            arguments = self._arguments(client, request, buffers)
            with called_from(line):
                self._begin(client, number, request, line, arguments)
        except BaseException as error:  # it is the caller's, and this thread makes the next call
            if isinstance(error, RefusedError | WireFormatError):
                error = refused(getattr(error, "kind", "Malformed"), f"{error} (request {request_id})")
            update = CallUpdate(number, unsent=True, error=self._components.error(client.tenant, error))
        if not (update.accepted and request.eager):
            client.publish(update)

    def _arguments(self, client: RemoteClient, request: CallRequest, buffers: Iterator[memoryview]) -> Arguments:
        """The arguments of a request: its marks, handles and results are those of this process."""

        def named(node: list[Any]) -> Any:
            match node:
                case ["lazy", name]:
                    return client.result(name).lazy
                case ["whole", value]:
                    return Replicate(value)
                case ["table", plan]:
                    return _table(plan)
                case ["handle", str(group), str(instance)]:
                    return self._components.find(client.tenant, group, instance).value
            raise WireFormatError(f"a node {node[0]!r:.40} is not known")

        args, kwargs = value_of([request.args, request.kwargs], buffers, named=named, error_type=own_error_type)
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise WireFormatError("args are a list, and kwargs a dict")
        return args, kwargs

    def _begin(self, client: RemoteClient, number: int, request: CallRequest, line: str, arguments: Arguments) -> None:
        """Start a call, or work of the server's own."""
        request_id = line.rpartition(" ")[2]
        work = self._work(client, request, arguments)
        if work is not None:
            ended = self.ends.begun(work[0], client.tenant, client.use, request_id)
            in_own_thread(partial(self._run, client, number, line, work[1], ended))
            return
        call, itself = self._call(client, request, line, arguments)
        pending = start(call, held=call.kind != "next", prefetched=call.kind == "next")
        ended = self.ends.begun(pending.name, client.tenant, client.use, request_id)
        one = ServedCall(number, client, pending, itself, ended)
        client.keep(one)
        self.ends.watch(one)

    def _call(self, client: RemoteClient, request: CallRequest, line: str, arguments: Arguments) -> tuple[Call, Any]:
        """The call that a request asks for, and its component.

        Raises:
            RefusedError: The class has no such remote function, or the component is not the client's.
            NotInitializedError: The session that built the component has ended.
            TypeError: The arguments do not fit the function.
        """
        served = self._components.find(client.tenant, request.group, request.instance)
        component = component_of(served.value)
        if component is None:
            raise NotInitializedError("this component is gone: the session that built it has ended")
        if request.kind == "ping":
            return presence(component, component.ranks, line), served.value
        name = _STEPS.get(request.kind, request.target)
        function = remote_function(served.cls, name)
        if function is None or function.kind != request.kind:
            raise RefusedError(403, f"{name[:80]!a} is no remote function of {served.cls.__name__}", "NotServed")
        args, kwargs = arguments if function.kind == "method" else ([], {})
        return function.call(component, line, tuple(args), kwargs), served.value

    def _work(
        self, client: RemoteClient, request: CallRequest, arguments: Arguments
    ) -> tuple[str, Callable[[], object]] | None:
        """The name of the work that a request asks for, and the work; None for a call."""
        key = client.tenant, request.group, request.instance
        if request.kind == "create":
            return self._create(client, request, arguments)
        if request.kind == "drop":
            cls = self._components.find(*key).cls
            return f"{cls.__name__}.release", partial(self._release, client, [key[1:]])
        if request.kind == "tool":
            return "tool", self._tool(client, request.target, *arguments)
        if request.kind not in ("method", "iterate", "next", "ping"):
            raise RefusedError(403, f"{request.kind[:20]!a} is no kind of call here", "NotServed")
        return None

    def _create(
        self, client: RemoteClient, request: CallRequest, arguments: Arguments
    ) -> tuple[str, Callable[[], object]]:
        cls: Any = self._components.served_class(request.target)
        client.use.check("components")
        key = client.tenant, request.group, request.instance
        if (live := self._components.live.get(key[1:])) is not None:
            if live.cls is not cls:
                raise PlacementError(f"instance_id={key[2]!r} on group {key[1]!r} is a {live.cls.__name__}")
            return f"{cls.__name__}.__init__", lambda: None
        args, kwargs = arguments
        place = placement(cls, kwargs, key[1])
        self._components.reserve(key)

        def build() -> None:
            self._components.build(key, cls, partial(cls, *args, **place))
            client.components.add(key[1:])
            client.use.add("components")
            if client.is_gone:
                self._release(client, [key[1:]])

        return f"{cls.__name__}.__init__", build

    def _tool(self, client: RemoteClient, tool: str, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """The work that a request about a tool asks for: to make it, call it, or close it.

        Raises:
            RefusedError: Its token has too many tools.
            BackendError: It is not installed: a name that a client sends is looked up here and nowhere else.
        """
        name, *given = args or [""]
        made = client.tools.get(tool)
        if made is not None and name == "close":
            client.use.add("tools", -1)
            return client.tools.pop(tool).close
        if made is not None:
            return lambda: made.call(str(name), *given)
        client.use.check("tools")
        found = {entry.name: entry for entry in entry_points(group="twinkle.session_tools")}
        if str(name) not in found:
            raise BackendError(f"the server has no tool {str(name)[:80]!a}; it has {', '.join(found) or 'none'}")

        def make() -> None:
            client.tools[tool] = found[name].load()(*given, **kwargs)
            client.use.add("tools")

        return make

    def _run(self, client: RemoteClient, number: int, line: str, work: Callable[[], object], ended: Ended) -> None:
        """Do some work, in a thread of its own."""
        failed = None
        try:
            with called_from(line):
                made = work()
            value = self._components.encoded(client.tenant, made, "the answer").to_bytes()
            update = CallUpdate(number, value=value)
        except BaseException as error:  # it is the caller's
            update, failed = CallUpdate(number, error=self._components.error(client.tenant, error)), error
        ended(failed)
        client.publish(update)

    def read(self, client: RemoteClient, request: ResultRequest, buffers: Iterator[memoryview]) -> WireMessage:
        """The value of a result, or some rows and columns of it, or its error, encoded; waits for it."""
        one = client.result(request.name)
        rows, columns = value_of([request.rows, request.columns], buffers)
        if not isinstance(rows, list | slice | None) or not isinstance(columns, list | None):
            raise WireFormatError("rows are a list or a slice, and columns a list")
        try:
            value = one.value() if rows is None else take(one.lazy, rows)
            value = value.result(READ_SECONDS) if isinstance(value, Lazy) else value
            value = value if columns is None else selected_where_there(value, tuple(columns))
            return self._components.encoded(client.tenant, value, f"the result of {one.pending.name}")
        except Exception as error:  # it is the caller's
            return encode({"error": self._components.error(client.tenant, error)})

    def cancel(self, client: RemoteClient, request: ResultRequest, _: object) -> None:
        """Cancel a call."""
        pending = client.result(request.name).pending
        (pending.withdraw if request.withdraw else pending.cancel)()

    def close(self, client: RemoteClient) -> None:
        """Release all that a client holds; takes as long as its components take."""
        client.turn.put(partial(self._cancel_all, client))  # behind the calls that it sent before
        client.turn.end()
        client.drop(list(client.results))
        closing = [tool.close for tool in client.tools.values()]
        client.tools.clear()
        client.use.add("tools", -len(closing))
        works: list[Callable[[], None]] = [*closing, partial(self._release, client, list(client.components))]
        for work in works:
            try:
                work()
            except TwinkleError as error:
                _log.warning("what a client held that is gone was not released: %s", ascii(str(error)[:300]))

    def _cancel_all(self, client: RemoteClient) -> None:
        for one in self.ends.of(client):
            one.pending.cancel()

    def _release(self, client: RemoteClient, places: Sequence[tuple[str, str]]) -> None:
        """Release components of a client; raises the first error."""
        values = []
        for place in places:
            client.components.discard(place)
            served = self._components.remove((client.tenant, *place))
            if served is not None:
                client.use.add("components", -1)
                values.append(served.value)
        for error in () if self._session.closed else release_all(values):
            raise error


def _table(plan: object) -> Any:
    """The table of a plan: rows of lazy results of this session, and of plain values.

    Raises:
        WireFormatError: It is no plan.
        DispatchError: A row, or a column, is not there; if rows are counted later, the reader raises it.
    """
    match plan:
        case ["value", of]:
            return of
        case ["concat", [_, *_] as of]:
            return concat([_table(part) for part in of])
        case ["join", [_, *_] as of]:
            return join(*[_table(part) for part in of])
        case ["take", of, list() | slice() as rows]:
            return take(_table(of), rows)
        case ["select", of, [_, *_] as names]:
            return select(_table(of), *names)
    raise WireFormatError("a plan of a table is a word with its arguments")
