"""The calls of clients: a request becomes a call of the session, or work next to it.

A request names only what its client holds: its components, and its results. The session divides the call, collects its
value, and keeps its deadline, as for its own program.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_http.errors import own_error_type
from twinkle_http.messages import CallUpdate, Refusal, WireFormatError
from twinkle_http.server.components import Components, placement
from twinkle_http.server.ends import READ_SECONDS, Ends, ServedCall
from twinkle_http.server.gate import RefusedError
from twinkle_http.server.tools import InstalledTools
from twinkle_http.server.turn import in_own_thread
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
from twinkle_remote.errors import NotInitializedError, PlacementError, TwinkleError
from twinkle_remote.protocol import component_of
from twinkle_remote.rows import TYPES, selected_where_there

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_http.messages import Buffer, CallRequest, Limits, ResultRequest, WireMessage
    from twinkle_http.server.clients import RemoteClient
    from twinkle_http.server.components import ServedClasses
    from twinkle_http.server.gate import AccessLog, Body
    from twinkle_remote.backends.serving import ServedSession
    from twinkle_remote.protocol import Call

    Arguments = tuple[tuple[Any, ...], dict[str, Any]]
    Ended = Callable[[BaseException | None], None]

_log = logging.getLogger("twinkle.http")
_LONGEST_LINE = 300
_STEPS = {"iterate": "__iter__", "next": "__next__"}


class Calls:
    """Makes calls in the session of this process.

    Args:
        session: The session.
        classes: The served classes.
        limits: Bounds of a message.
        access_log: Takes a line for each call.

    Attributes:
        components: The components of all tenants.
        ends: Watches the calls.
    """

    def __init__(self, session: ServedSession, classes: ServedClasses, limits: Limits, access_log: AccessLog) -> None:
        self.components = Components(classes.live)
        self.ends = Ends(session, self.components)
        self._working: set[str] = set()
        self._session, self._classes, self._limits, self._access_log = session, classes, limits, access_log
        self._tools = InstalledTools()

    def make(self, client: RemoteClient, number: int, body: Body[CallRequest]) -> None:
        """Make a call, in the client's thread; one that cannot be made is its update."""
        name, request_id, request = f"r{number}", f"{client.name[-8:]}-{number}", body.root
        line = f"{request.line!s:.{_LONGEST_LINE}}, request {request_id}"
        update = CallUpdate(name, accepted=True)
        try:
            client.use.check("calls", "results")
            arguments = self._arguments(client, request, body.buffers)
            with called_from(line):
                self._begin(client, number, request, line, arguments)
        except (RefusedError, WireFormatError) as error:
            update = CallUpdate(name, refused=_refusal(error, request_id))
        except BaseException as error:  # it is the caller's, and this thread makes the next call
            update = CallUpdate(name, unsent=self.components.error(client.tenant, error))
        if not (update.accepted and request.eager):
            client.publish(number, update)

    def _arguments(self, client: RemoteClient, request: CallRequest, buffers: list[Buffer]) -> Arguments:
        """The arguments of a request: its marks, handles and results are those of this process."""
        made = {"lazy": lambda name: client.result(name).lazy, "table": _table, "whole": Replicate}

        def named(node: list[Any]) -> Any:
            if node[0] in made and len(node) == 2:
                return made[node[0]](node[1])
            if node[0] == "handle" and len(node) == 3:
                return self.components.find(client.tenant, node[1], node[2]).value
            raise WireFormatError(f"a node {node[0]!r:.40} is not known")

        roots = [request.args, request.kwargs]
        options: Any = {"named": named, "error_type": own_error_type, "limits": self._limits}
        args, kwargs = value_of(roots, buffers, TYPES, **options)
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise WireFormatError("args are a list, and kwargs a dict")
        return tuple(args), kwargs

    def _begin(self, client: RemoteClient, number: int, request: CallRequest, line: str, arguments: Arguments) -> None:
        """Start a call, or work of the server's own."""
        request_id = line.rpartition(" ")[2]
        work = self._work(client, request, arguments)
        if work is None:
            call, itself = self._call(client, request, line, arguments)
            pending = start(call, held=call.kind != "next", prefetched=call.kind == "next")
            ended = self._at_end(client, pending.name, request_id)
            self.ends.watch(ServedCall(number, client, pending, itself, ended))
            return
        label, run = work
        ended = self._at_end(client, label, request_id)
        self._working.add(request_id)
        in_own_thread(partial(self._run, client, number, line, run, ended), "twinkle-http-work")

    def _call(self, client: RemoteClient, request: CallRequest, line: str, arguments: Arguments) -> tuple[Call, Any]:
        """The call that a request asks for, and its component.

        Raises:
            RefusedError: The class has no such remote function, or the component is not the client's.
            NotInitializedError: The session that built the component has ended.
            TypeError: The arguments do not fit the function.
        """
        served = self.components.find(client.tenant, request.group, request.instance)
        component = component_of(served.value)
        if component is None:
            raise NotInitializedError("this component is gone: the session that built it has ended")
        if request.kind == "ping":
            return presence(component, component.ranks, line), served.value
        name = _STEPS.get(str(request.kind), str(request.target))
        function = remote_function(served.cls, name)
        if function is None or function.kind != request.kind:
            raise RefusedError(403, f"{name[:80]!a} is no remote function of {served.cls.__name__}", "NotServed")
        given = arguments if function.kind == "method" else ()
        return function.call(component, line, *given), served.value

    def _work(
        self, client: RemoteClient, request: CallRequest, arguments: Arguments
    ) -> tuple[str, Callable[[], object]] | None:
        """The name of the work that a request asks for, and the work; None for a call."""
        group, instance = str(request.group), str(request.instance)
        if request.kind == "create":
            return self._create(client, request, arguments)
        if request.kind == "drop":
            cls = self.components.find(client.tenant, group, instance).cls
            return f"{cls.__name__}.release", partial(self._release, client, [(group, instance)])
        if request.kind == "tool":
            return "tool", self._tools.call(client, str(request.target), *arguments)
        if request.kind not in ("method", "iterate", "next", "ping"):
            raise RefusedError(403, f"{str(request.kind)[:20]!a} is no kind of call here", "NotServed")
        return None

    def _create(
        self, client: RemoteClient, request: CallRequest, arguments: Arguments
    ) -> tuple[str, Callable[[], object]]:
        cls: Any = self._classes.find(str(request.target))
        client.use.check("components")
        key = client.tenant, str(request.group), str(request.instance)
        if key[1:] in self.components.live:
            live = self.components.live[key[1:]]
            if live.cls is not cls:
                raise PlacementError(f"instance_id={key[2]!r} on group {key[1]!r} is a {live.cls.__name__}")
            return f"{cls.__name__}.__init__", lambda: None
        place = placement(cls, arguments[1], key[1])
        self.components.reserve(*key)

        def build() -> None:
            made = None
            try:
                made = cls(*arguments[0], **place)
                if component_of(made) is None:
                    raise NotInitializedError(f"{cls.__name__} was built, but is no component of this session")
            finally:
                self.components.settle(key, cls, made)
            client.components.add(key[1:])
            client.use.add("components")
            if client.is_gone:
                self._release(client, [key[1:]])

        return f"{cls.__name__}.__init__", build

    def _run(self, client: RemoteClient, number: int, line: str, work: Callable[[], object], ended: Ended) -> None:
        """Do some work, in a thread of its own."""
        name, failed = f"r{number}", None
        try:
            with called_from(line):
                made = work()
            update = CallUpdate(name, value=self.components.encoded(client.tenant, made, "the answer").to_bytes())
        except BaseException as error:  # it is the caller's
            update, failed = CallUpdate(name, error=self.components.error(client.tenant, error)), error
        ended(failed)
        self._working.discard(line.rpartition(" ")[2])
        client.publish(number, update)

    def _at_end(self, client: RemoteClient, label: str, request_id: str) -> Ended:
        """Counts and logs a call at its end."""
        began = time.monotonic()
        client.use.add("calls")

        def tell(error: BaseException | None) -> None:
            client.use.add("calls", -1)
            failures = getattr(error, "failures", ())
            kind = "" if error is None else failures[0].type_name if failures else type(error).__name__
            self._access_log.called(label, client.tenant, request_id, time.monotonic() - began, kind)

        return tell

    def in_flight(self) -> int:
        """The number of calls, and of work of the server's own, that are not done."""
        return len(self.ends.in_flight) + len(self._working)

    def read(self, client: RemoteClient, body: Body[ResultRequest]) -> WireMessage:
        """The value of a result, or some rows and columns of it, or its error, encoded; waits for it."""
        request = body.root
        one = client.result(request.name)
        rows, columns = value_of([request.rows, request.columns], body.buffers, TYPES, limits=self._limits)
        if not isinstance(rows, list | slice | None) or not isinstance(columns, list | None):
            raise WireFormatError("rows are a list or a slice, and columns a list")
        try:
            value = one.value() if rows is None else take(one.lazy, rows)
            value = value.result(READ_SECONDS) if isinstance(value, Lazy) else value
            value = value if columns is None else selected_where_there(value, tuple(columns))
            return self.components.encoded(client.tenant, value, f"the result of {one.pending.name}")
        except Exception as error:  # it is the caller's
            return encode({"error": self.components.error(client.tenant, error)}, TYPES)

    def cancel(self, client: RemoteClient, body: Body[ResultRequest]) -> None:
        """Cancel a call."""
        pending = client.result(body.root.name).pending
        (pending.withdraw if body.root.withdraw else pending.cancel)()

    def stacks(self, client: RemoteClient, body: Body[ResultRequest]) -> WireMessage:
        """The places of the workers that have not answered, as text."""
        pending = client.result(body.root.name).pending
        stacks = pending.group.stacks_of(pending.pending())
        return encode("\n".join(f"rank {rank}:\n{text.rstrip()}" for rank, text in stacks.items()), TYPES)

    def close(self, client: RemoteClient) -> None:
        """Release all that a client holds; takes as long as its components take."""
        client.turn.put(partial(self._cancel_all, client))  # behind the calls that it sent before
        client.turn.end()
        client.drop(list(client.results))
        try:
            self._tools.close(client)
            self._release(client, list(client.components))
        except TwinkleError as error:
            _log.warning("what a client held that is gone was not released: %s", ascii(str(error)[:300]))

    def _cancel_all(self, client: RemoteClient) -> None:
        for one in self.ends.of(client):
            one.pending.cancel()

    def _release(self, client: RemoteClient, keys: Sequence[tuple[str, str]]) -> None:
        """Release components of a client; raises the first error."""
        values = []
        for key in keys:
            client.components.discard(key)
            served = self.components.remove(client.tenant, *key)
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
    if isinstance(plan, list) and len(plan) > 1 and isinstance(plan[0], str):
        word, of, *given = plan
        if word == "value" and not given:
            return of
        if word in ("concat", "join") and not given and isinstance(of, list) and of:
            parts = [_table(part) for part in of]
            return concat(parts) if word == "concat" else join(*parts)
        if word == "take" and len(given) == 1 and isinstance(given[0], list | slice):
            return take(_table(of), given[0])
        if word == "select" and len(given) == 1 and isinstance(given[0], list) and given[0]:
            return select(_table(of), *given[0])
    raise WireFormatError("a plan of a table is a word with its arguments")


def _refusal(error: Exception, request: str) -> Refusal:
    if isinstance(error, RefusedError):
        return Refusal(error.status, error.kind, error.why, request)
    return Refusal(400, "Malformed", str(error), request)
