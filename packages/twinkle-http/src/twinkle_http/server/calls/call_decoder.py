"""From the requests of clients to calls of the session. A request can name only what its client holds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_http.server.calls.named_rows import piece_named, rows_named
from twinkle_http.server.calls.served_call import ServedCall
from twinkle_http.server.requests.body import RefusedError
from twinkle_http.tags import TagReader, own_error_type
from twinkle_http.wire.decode import values_of
from twinkle_http.wire.envelopes import read_request
from twinkle_http.wire.errors import WireFormatError
from twinkle_remote.backends.serving import presence, remote_function, table_by
from twinkle_remote.errors import DispatchError, NotInitializedError
from twinkle_remote.protocol import Call, FunctionSpec, by_rank_options, component_of
from twinkle_remote.values import TYPES

if TYPE_CHECKING:
    from msgspec import Raw

    from twinkle_http.server.clients.clients import RemoteClient
    from twinkle_http.server.components import Components
    from twinkle_http.server.requests.body import Body
    from twinkle_http.wire.envelopes import CallRequest
    from twinkle_http.wire.limits import Limits
    from twinkle_remote.protocol import Component

KINDS = ("method", "generate", "iterate", "next", "item", "close", "ping")
_STEPS = {"iterate": "__iter__", "next": "__next__"}
_MOST_INLINE_BYTES = 4096
_PLAIN = frozenset({type(None), bool, int, float, str})
_LONGEST_LINE = 300


class DecodedCall(NamedTuple):
    """A call as a client asks for it.

    Attributes:
        call: The call.
        itself: The component, if the method returns it.
    """

    call: Call
    itself: Any = None


class CallDecoder:
    """Reads the requests of clients.

    Args:
        components: The components of all tenants.
        limits: Bounds of a message.
    """

    def __init__(self, components: Components, limits: Limits) -> None:
        self._components = components
        self._limits = limits

    def request(self, client: RemoteClient, body: Body[Raw]) -> CallRequest:
        """The request of a client: its marks, handles and results are those of this process.

        Raises:
            RefusedError: It names what the client does not hold.
            WireFormatError: It is no request.
        """
        request = read_request(body.tree.root)
        nodes = body.tree.nodes
        if nodes or body.buffers or request.args or request.kwargs or request.mesh:
            roots = (request.args, request.kwargs, request.mesh)
            reader = TagReader(own_error_type, lambda node: self._named(client, node))
            found = values_of(roots, nodes, body.buffers, TYPES, named=reader.value, limits=self._limits)
            request.args, request.kwargs, request.mesh = found
        return request

    def _named(self, client: RemoteClient, node: list[Any]) -> Any:
        """The value that a node of a request names."""
        if node[0] == "lazy" and len(node) == 2:
            result = client.result(str(node[1]))
            if isinstance(result, ServedCall):
                return result.lazy
        if node[0] == "piece" and len(node) == 3:
            return piece_named(client, node[1], node[2])
        if node[0] == "rows" and len(node) == 2:
            return rows_named(client, node[1])
        if node[0] == "table" and len(node) == 2:
            try:
                return table_by(node[1])
            except DispatchError:  # a row or a column is not there
                raise
            except (TypeError, ValueError) as error:
                raise WireFormatError(str(error)) from None
        if node[0] == "handle" and len(node) == 3:
            return self._components.find(client.tenant, node[1], node[2]).value
        raise WireFormatError(f"a node {node[0]!r:.40} is not known")

    def call(self, client: RemoteClient, request: CallRequest, request_id: str) -> DecodedCall:
        """The call that a request asks for.

        Args:
            client: The client.
            request: The request, of one of `KINDS`.
            request_id: What names it in logs and errors.

        Raises:
            RefusedError: The class has no such remote function, or the component is not the client's.
            NotInitializedError: The session that built the component has ended.
            TypeError: The arguments do not fit the function.
        """
        kind, line = request.kind, line_of(request, request_id)
        if kind in ("item", "close"):
            opened = client.generators.find(str(request.target))
            spec = FunctionSpec(dispatch="all", collect="first", form=opened.spec.form, timeout=_timeout(request))
            part = replace(opened.component, ranks=ranks_of(opened.component, request))
            return DecodedCall(Call(kind, part, opened.key, opened.name, spec, line, reads_ranks=kind == "item"))
        served = self._components.find(client.tenant, request.group, request.instance)
        component = component_of(served.value)
        if component is None:
            raise NotInitializedError("this component is gone: the session that built it has ended")
        by_rank = bool(request.by_rank)
        if kind == "ping":
            call = presence(component, ranks_of(component, request), line)
            return DecodedCall(replace(call, reads_ranks=by_rank), served.value)
        name, key = _pair(request.target) if kind == "generate" else (_STEPS.get(kind, str(request.target)), "")
        function = remote_function(served.cls, name)
        if function is None or function.kind != kind:
            raise RefusedError(403, f"{name[:80]!a} is no remote function of {served.cls.__name__}", "NotServed")
        if by_rank and kind == "method":
            component = replace(component, ranks=ranks_of(component, request))
        given = arguments_of(request) if kind in ("method", "generate") else ()
        call = function.call(component, line, *given, adds=bool(request.adds))
        if kind == "generate":
            call = replace(call, target=(name, client.generators.add(key, call)), reads_ranks=by_rank)
        elif by_rank:
            call = replace(call, spec=by_rank_options(call.spec), reads_ranks=True)
        return DecodedCall(call, served.value)

    def inline(self, client: RemoteClient, body: Body[Raw], request_id: str) -> tuple[CallRequest, DecodedCall] | None:
        """The request of a call whose making neither waits nor runs anything of a user, and the call.

        It is a method's, whose arguments are numbers and text. None for any other, also for one that is to be refused.
        """
        tree = body.tree
        if tree.nodes or body.buffers or memoryview(tree.root).nbytes > _MOST_INLINE_BYTES:
            return None
        try:
            request = read_request(tree.root)
            args = request.args
            if request.kind != "method" or request.by_rank or request.kwargs or type(args) is not list:
                return None
            served = self._components.find(client.tenant, request.group, request.instance)
        except (RefusedError, WireFormatError):
            return None
        function, component = remote_function(served.cls, str(request.target)), component_of(served.value)
        if function is None or component is None or function.kind != "method" or callable(function.spec.dispatch):
            return None
        if len(args) not in function.counts or not _PLAIN.issuperset(map(type, args)):
            return None
        call = function.call(component, line_of(request, request_id), tuple(args))
        return request, DecodedCall(call, served.value)


def line_of(request: CallRequest, request_id: str) -> str:
    """File and line of the caller, and the id of its request, for messages."""
    return f"{request.line!s:.{_LONGEST_LINE}}, request {request_id}"


def arguments_of(request: CallRequest) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the keyword arguments; raises WireFormatError for what they cannot be."""
    args, kwargs = request.args, request.kwargs
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise WireFormatError("args are a list, and kwargs a dict")
    return tuple(args), kwargs


def ranks_of(component: Component, request: CallRequest) -> tuple[int, ...]:
    """The ranks that a request calls; raises WireFormatError for what they cannot be."""
    ranks = request.ranks
    if not isinstance(ranks, list) or not ranks or not set(component.ranks).issuperset(_whole(ranks)):
        raise WireFormatError(f"ranks are some of {component.name}'s")
    return tuple(ranks)


def _whole(ranks: list[Any]) -> list[Any]:
    return [rank if type(rank) is int else None for rank in ranks]


def _timeout(request: CallRequest) -> float | None:
    """Seconds to the deadline that the caller gave; None without one."""
    found = request.timeout
    if found is not None and (not isinstance(found, int | float) or isinstance(found, bool) or not found > 0):
        raise WireFormatError("a timeout is seconds above 0")
    return found


def _pair(target: Any) -> tuple[str, str]:
    """The method of a generator, and its key."""
    if not isinstance(target, list) or len(target) != 2:
        raise WireFormatError("a generator has a method and a key")
    return str(target[0]), str(target[1])
