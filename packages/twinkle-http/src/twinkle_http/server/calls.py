"""The calls of clients: a request becomes a call of the session, or work next to it, and its end is the client's.

A request names only what its client holds: its components, and its results. The session divides the call, collects its
value, and keeps its deadline, as for its own program. One coroutine of the server's event loop follows a request from
its begin to its end; what may wait is done in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from concurrent.futures import Future
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_http.errors import WireFormatError, own_error_type, refused
from twinkle_http.gate import RefusedError, log_call
from twinkle_http.messages import CallUpdate
from twinkle_http.wire import encode, value_of
from twinkle_remote import Replicate, concat, get, join, release, run_on_workers, select, take
from twinkle_remote.backends.support import Lazy, call_of, called_from, known_rows, over, ping
from twinkle_remote.errors import BackendError, CallTimeoutError, PlacementError, TwinkleError
from twinkle_remote.protocol import Itself
from twinkle_remote.rows import selected_where_there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_http.messages import CallRequest, ResultRequest
    from twinkle_http.server.clients import Clients, RemoteClient
    from twinkle_http.server.components import Components, Key
    from twinkle_http.wire import WireMessage

    Work = Lazy[Any] | Callable[[], Any]

T = TypeVar("T")
_LONGEST_LINE = 300
_INLINE_BYTES = 16 * 1024
_READ_SECONDS = 600.0
_STEPS = {"iterate": "__iter__", "next": "__next__"}
_log = logging.getLogger("twinkle.http")


class StoppedError(Exception):
    """A StopIteration, its argument, which no coroutine can raise."""


async def result_of(work: Callable[[], T]) -> T:
    """The result of some work that a daemon thread does: one of a pool would hold the interpreter at its end."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            value = work()
        except BaseException as error:  # it is for who waits
            done.set_exception(StoppedError(error) if isinstance(error, StopIteration) else error)
        else:
            done.set_result(value)

    threading.Thread(target=run, name="twinkle-http-work", daemon=True).start()
    return await asyncio.shield(asyncio.wrap_future(done))


class Calls:
    """Makes calls in the session of this process."""

    def __init__(self, components: Components, clients: Clients) -> None:
        self._components, self._clients = components, clients

    @contextlib.contextmanager
    def counted(self, name: str, tenant: str, request: str) -> Iterator[None]:
        """Count a call while it runs, and log its end; on the event loop."""
        began, kind = time.monotonic(), ""
        self._clients.calls[tenant] += 1
        try:
            yield
        except BaseException as error:
            failures = getattr(error, "failures", ())
            kind = failures[0].type_name if failures else getattr(error, "kind", type(error).__name__)
            raise
        finally:
            self._clients.calls[tenant] -= 1
            log_call(name, tenant, request, time.monotonic() - began, kind)

    async def run(self, client: RemoteClient, number: int, request: CallRequest, buffers: Iterator[memoryview]) -> None:
        """Make a call, and give its client the end; one that cannot be made is unsent."""
        request_id, tenant, update = f"{client.name[-8:]}-{number}", client.tenant, CallUpdate(number, unsent=True)
        line, work = f"{request.line:.{_LONGEST_LINE}}, request {request_id}", None
        try:
            self._clients.check(tenant, "calls", "results")
            with self.counted(self._name(tenant, request), tenant, request_id):
                async with client.turn:
                    work = await result_of(partial(self._begin, client, number, request, buffers, line))
                update.unsent = False
                if client.is_gone and isinstance(work, Lazy):
                    call_of(work).cancel()
                if not request.eager:
                    client.take(CallUpdate(number, accepted=True))
                if isinstance(work, Lazy):
                    await over([call_of(work)])
                await result_of(partial(self._finish, client, request, work, line, update))
        except (RefusedError, WireFormatError) as error:
            why = refused(getattr(error, "kind", "Malformed"), f"{error} (request {request_id})")
            update.error = self._components.error(tenant, why)
        except Exception as error:  # it is the caller's
            update.error = self._components.error(tenant, error.args[0] if isinstance(error, StoppedError) else error)
            if isinstance(error, CallTimeoutError) and isinstance(work, Lazy):
                update.upstream = not call_of(work).late()
        client.take(update)

    def _name(self, tenant: str, request: CallRequest) -> str:
        """Class.method for the log."""
        if request.kind == "create":
            return f"{request.target.rpartition('.')[2]:.80}.__init__"
        with contextlib.suppress(RefusedError):  # it is the answer to the call
            cls = self._components.find(tenant, request.group, request.instance).cls
            return f"{cls.__name__}.{request.target or request.kind:.80}"
        return f"{request.kind:.20} {request.target:.80}"

    def _begin(
        self, client: RemoteClient, number: int, request: CallRequest, buffers: Iterator[memoryview], line: str
    ) -> Work:
        """Begin a call; work that is no call of a method is done by who calls what is returned.

        Raises:
            RefusedError: The component is not the client's, or its class has no such remote function.
            NotInitializedError: The session that built the component has ended.
            TypeError: The arguments do not fit the function.
        """
        args, kwargs = self._arguments(client, request, buffers)
        key = client.tenant, request.group, request.instance
        if request.kind == "create":
            return self._create(client, key, self._components.served_class(request.target), args, kwargs)
        if request.kind == "tool":
            return self._tool(client, request.target, args, kwargs)
        served = self._components.find(*key)
        if request.kind == "drop":
            return partial(self.release, key)
        if request.kind == "ping":
            return partial(run_on_workers, served.handle, ping)
        with called_from(line):
            begun = served.begin(_STEPS.get(request.kind, request.target), args, kwargs)
        if isinstance(begun, Lazy):
            client.results[f"r{number}"] = begun
        return begun

    def _arguments(
        self, client: RemoteClient, request: CallRequest, buffers: Iterator[memoryview]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a request: its marks, handles and results are those of this process."""

        def named(node: list[Any]) -> Any:
            match node:
                case ["lazy", name]:
                    return client.result(name)
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

    def _create(
        self, client: RemoteClient, key: Key, cls: type, args: list[Any], kwargs: dict[str, Any]
    ) -> Callable[[], None]:
        """The work of building a component; a live one of its class and ids is there already."""
        self._clients.check(client.tenant, "components")
        if (live := self._components.live.get(key[1:])) is not None:
            if live.cls is not cls:
                raise PlacementError(f"instance_id={key[2]!r} on group {key[1]!r} is a {live.cls.__name__}")
            return lambda: None
        self._components.reserve(key)

        def build() -> None:
            self._components.build(key, cls, args, kwargs)
            client.components.add(key[1:])
            if client.is_gone:
                self.release(key)

        return build

    def _tool(self, client: RemoteClient, tool: str, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """The work that a request about a tool asks for: to make it, call it, or close it.

        Raises:
            RefusedError: Its token has too many tools.
            BackendError: It is not installed: a name that a client sends is looked up here and nowhere else.
        """
        name, *given = args or [""]
        made = client.tools.get(tool)
        if made is not None:
            return client.tools.pop(tool).close if name == "close" else lambda: made.call(str(name), *given)
        self._clients.check(client.tenant, "tools")
        found = {entry.name: entry for entry in entry_points(group="twinkle.session_tools")}
        if str(name) not in found:
            raise BackendError(f"the server has no tool {str(name)[:80]!a}; it has {', '.join(found) or 'none'}")

        def make() -> None:
            client.tools[tool] = found[name].load()(*given, **kwargs)

        return make

    def _finish(self, client: RemoteClient, request: CallRequest, work: Work, line: str, update: CallUpdate) -> None:
        """Wait for the end of a call that is over or late, or do other work; fill its update."""
        with called_from(line):
            try:
                made = work if isinstance(work, Lazy) else work()
            except StopIteration:
                update.outcome = {"ended": True}
                return
            if not isinstance(made, Lazy):
                update.value = self._components.encoded(client.tenant, made, "the answer").to_bytes()
                return
            if made is not work:
                client.results[f"r{update.number}"] = made
            made.wait()
            pending = call_of(made)
            outcomes = [pending.outcome(rank) for rank in pending.ranks]
            begin, produced = min(one.started for one in outcomes), sum(one.produced for one in outcomes)
            update.outcome = {"is_list": all(one.is_list for one in outcomes), "produced": produced, "started": begin}
            update.outcome["seconds"] = max(one.started + one.seconds for one in outcomes) - begin
            with contextlib.suppress(Exception):  # of a value, it is for who reads it
                if any(outcome.rows is not None for outcome in outcomes):
                    update.outcome["rows"] = known_rows(made)
                    columns = outcomes[0].columns
                    if columns is not None and all(outcome.columns == columns for outcome in outcomes):
                        update.outcome["columns"] = [str(column) for column in columns]
                if produced <= _INLINE_BYTES:
                    served = self._components.find(client.tenant, request.group, request.instance)
                    value = Itself.ITSELF if made.result() is served.handle else made.result()
                    message = self._components.encoded(client.tenant, value, f"the result of {pending.name}")
                    update.value = message.to_bytes() if message.nbytes <= _INLINE_BYTES else None

    def read(self, client: RemoteClient, request: ResultRequest, buffers: Iterator[memoryview]) -> WireMessage:
        """The value of a result, or some rows and columns of it, or its error, encoded; waits for it."""
        lazy = client.result(request.name)
        rows, columns = value_of([request.rows, request.columns], buffers)
        if not isinstance(rows, list | slice | None) or not isinstance(columns, list | None):
            raise WireFormatError("rows are a list or a slice, and columns a list")
        try:
            with called_from("a client's reading"):
                value = get(lazy if rows is None else take(lazy, rows), _READ_SECONDS)
            value = value if columns is None else selected_where_there(value, tuple(columns))
            return self._components.encoded(client.tenant, value, f"the result of {call_of(lazy).name}")
        except Exception as error:  # it is the caller's
            return encode({"error": self._components.error(client.tenant, error)})

    def cancel(self, client: RemoteClient, request: ResultRequest, _: object) -> None:
        """Cancel a call."""
        pending = call_of(client.result(request.name))
        (pending.cancel if request.withdraw else pending.give_up)()

    async def close(self, client: RemoteClient) -> None:
        """Release all that a client holds; takes as long as its components take."""
        self._clients.forget(client)
        await result_of(partial(self._close, client))

    def _close(self, client: RemoteClient) -> None:
        for lazy in tuple(client.results.values()):
            call_of(lazy).cancel()
        client.results.clear()
        works: list[Callable[[], None]] = [tool.close for tool in client.tools.values()]
        client.tools.clear()
        works += [partial(self.release, (client.tenant, *place)) for place in client.components]
        for work in works:
            try:
                work()
            except TwinkleError as error:
                _log.warning("what a client held that is gone was not released: %s", ascii(str(error)[:300]))

    def release(self, key: Key) -> None:
        """Release a component that a client has built; a second time does nothing."""
        for client in self._clients.all():
            if client.tenant == key[0]:
                client.components.discard(key[1:])
        value = self._components.remove(key)
        if value is not None:
            release(value)


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
