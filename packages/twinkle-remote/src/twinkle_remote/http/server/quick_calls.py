"""Which calls the event loop makes itself: to make them neither waits nor runs anything of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.http.server.body import RefusedError
from twinkle_remote.http.server.served_function import served_function, signature_of
from twinkle_remote.http.wire.envelopes import read_request
from twinkle_remote.http.wire.errors import WireFormatError
from twinkle_remote.protocol.backend import MemoryQueueBackend

if TYPE_CHECKING:
    from msgspec import Raw

    from twinkle_remote.http.server.body import Body
    from twinkle_remote.http.server.clients import RemoteClient
    from twinkle_remote.http.server.components import Components
    from twinkle_remote.http.wire.envelopes import CallRequest
    from twinkle_remote.sessions.runtime import Runtime

_MOST_BYTES = 4096
_PLAIN = frozenset({type(None), bool, int, float, str})


class QuickCalls:
    """Finds these calls: methods of workers in this process, whose arguments are numbers and text.

    A client's thread makes the others: a backend may send, or run the method itself, and a class may divide arguments
    by code of its own.

    Args:
        runtime: The session.
        components: The components of all tenants.
    """

    def __init__(self, runtime: Runtime, components: Components) -> None:
        backend = runtime.backend
        self._are_possible = isinstance(backend, MemoryQueueBackend) and backend.queues_in_memory
        self._components = components

    def read(self, client: RemoteClient, body: Body[Raw]) -> CallRequest | None:
        """The request of such a call; None for any other, also for one that is to be refused."""
        tree = body.tree
        if not self._are_possible or tree.nodes or body.buffers or memoryview(tree.root).nbytes > _MOST_BYTES:
            return None
        try:
            request = read_request(tree.root)
            args = request.args
            if request.kind != "method" or request.by_rank or request.kwargs or type(args) is not list:
                return None
            served = self._components.find(client.tenant, request.group, request.instance)
            spec, function = served_function(served.cls, str(request.target))
        except (RefusedError, WireFormatError):
            return None
        is_quick = (
            function is not None
            and len(args) in signature_of(function)[1]
            and not callable(spec.dispatch)
            and _PLAIN.issuperset(map(type, args))
        )
        return request if is_quick else None
