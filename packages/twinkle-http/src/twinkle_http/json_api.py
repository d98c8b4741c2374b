"""JSON for other languages: components are built, called and released by their ids.

Each request runs in a thread of its own. A component that was built here lives as long as requests for it come: JSON
has no sign of life.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from twinkle_http.json_types import MOST_CHARACTERS, JsonClass, described, encoded, invalid
from twinkle_http.server.components import placement
from twinkle_http.server.gate import RefusedError, stops, take_body
from twinkle_http.server.turn import result_of
from twinkle_mesh import DeviceMesh
from twinkle_remote import release
from twinkle_remote.backends.serving import (
    GROUP,
    MESH,
    CallResult,
    called_from,
    check_all_ended,
    remote_function,
    start,
)
from twinkle_remote.errors import (
    CallTimeoutError,
    DispatchError,
    NotInitializedError,
    PlacementError,
    RemoteCallError,
)
from twinkle_remote.protocol import component_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from twinkle_http.server.clients import Clients
    from twinkle_http.server.components import Components, Key, ServedClasses
    from twinkle_http.server.gate import AccessLog
    from twinkle_remote.backends.serving import ServedSession

    Work = Callable[[str, bytes, str, dict[str, str]], bytes]

LEASES = 10  # a component without a request for so many leases is released
_STATUS: Mapping[type[Exception], int] = {
    CallTimeoutError: 504,
    NotInitializedError: 503,
    PlacementError: 400,
    DispatchError: 400,
    RemoteCallError: 500,
}


class JsonApi:
    """Answers the requests in JSON.

    Args:
        session: The session.
        classes: The served classes.
        components: The components of all tenants.
        clients: Knows what each tenant may hold.
        most_bytes: Bytes of a body at most.
        access_log: Takes a line for each call.

    Attributes:
        draining: No new call is taken.
        in_flight: Number of requests that are not answered.
    """

    def __init__(
        self,
        session: ServedSession,
        classes: ServedClasses,
        components: Components,
        clients: Clients,
        most_bytes: int,
        access_log: AccessLog,
    ) -> None:
        self.draining, self.in_flight = False, 0
        self._session, self._components, self._clients = session, components, clients
        self._most_bytes, self._access_log = most_bytes, access_log
        short = [cls.__name__ for cls in classes.by_name.values()]
        named = {cls.__name__ if short.count(cls.__name__) == 1 else name: cls for name, cls in classes.by_name.items()}
        self._classes = {path: JsonClass(cls, path) for path, cls in named.items()}
        self._seen: dict[Key, float] = {}  # when the last request came for what was built here, in monotonic seconds
        self._busy: Counter[Key] = Counter()

    def routes(self) -> Sequence[Route]:
        """The routes."""

        async def describe(request: Request) -> Response:
            text = msgspec.json.encode(described(tuple(self._classes.values())))
            return Response(text, media_type="application/json")

        return [
            Route("/openapi.json", describe, methods=["GET"]),
            Route("/v1/{cls}", self._answering(self._create, 201), methods=["POST"]),
            Route("/v1/{cls}/{id}/{method}", self._answering(self._call, 200), methods=["POST"]),
            Route("/v1/{cls}/{id}", self._answering(self._release, 204), methods=["DELETE"]),
        ]

    def _answering(self, work: Work, status: int) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            state, body = request.scope["state"], bytearray()
            tenant, line = state["tenant"], f"JSON, request {state['request']}"
            try:
                await take_body(request.scope, request.receive, self._most_bytes, body.extend)
                if self.draining:
                    raise stops()
                use = self._clients.use(tenant)
                use.check("calls")
                use.add("calls")
                self.in_flight += 1
                try:
                    content = await result_of(partial(work, tenant, bytes(body), line, request.path_params))
                finally:
                    self.in_flight -= 1
                    use.add("calls", -1)
                return Response(content, status, media_type="application/json" if content else None)
            except Exception as error:  # it is the caller's
                code, state["error"], message = _status_of(error)
            told = {"error": {"type": state["error"], "message": message, "request": state["request"]}}
            headers = {"connection": "close"} if code in (400, 413, 415) else {}
            return Response(msgspec.json.encode(told), code, headers, "application/json")

        return answer

    def _class(self, name: str) -> JsonClass:
        if name not in self._classes:
            raise RefusedError(403, f"{name[:80]!a} is not served; served are {', '.join(self._classes)}", "NotServed")
        return self._classes[name]

    def _find(self, tenant: str, id_: str, cls: type | None = None) -> tuple[Key, Any]:
        """A component of a tenant by its id."""
        key, served = self._components.named(tenant, id_, cls)
        if key in self._seen:
            self._seen[key] = time.monotonic()
        return key, served.value

    def _create(self, tenant: str, body: bytes, line: str, path: dict[str, str]) -> bytes:
        served = self._class(path["cls"])
        args, kwargs = served.constructor.bind(body, lambda id_: self._find(tenant, id_)[1])
        groups = tuple(self._session.groups)
        group = kwargs.pop(GROUP, {0: "local", 1: "".join(groups)}.get(len(groups)))
        if group is None:
            raise invalid(f"{GROUP} names one of the groups {', '.join(map(repr, groups))}")
        if MESH in kwargs:
            kwargs[MESH] = _mesh(kwargs[MESH])
        use = self._clients.use(tenant)
        use.check("components")
        cls: Any = served.cls
        with self._calling(f"{cls.__name__}.__init__", tenant, line):
            made = cls(*args, **placement(cls, kwargs, group))
        key = tenant, str(group), secrets.token_hex(8)
        self._components.settle(key, cls, made)
        self._seen[key] = time.monotonic()
        use.add("components")
        return msgspec.json.encode({"id": key[2]})

    def _call(self, tenant: str, body: bytes, line: str, path: dict[str, str]) -> bytes:
        served = self._class(path["cls"])
        function, remote = served.methods.get(path["method"]), remote_function(served.cls, path["method"])
        if function is None or remote is None:
            raise RefusedError(403, f"{path['method'][:80]!a} is no remote function of {served.path}", "NotServed")
        key, itself = self._find(tenant, path["id"], served.cls)
        component = component_of(itself)
        if component is None:
            raise NotInitializedError("this component is gone: the session that built it has ended")
        args, kwargs = function.bind(body, lambda id_: self._find(tenant, id_)[1])
        self._busy[key] += 1
        try:
            with self._calling(function.name, tenant, line):
                pending = start(remote.call(component, line, tuple(args), kwargs), held=True)
                value = CallResult(pending, itself).value(None)
                if remote.kind == "next" and any(pending.ended()):
                    check_all_ended(pending)
                    return b'{"ended":true}'
            result = None if remote.kind == "iterate" else value
            return encoded(result, function.name, lambda value: self._components.ids(tenant, value)[1])
        finally:
            self._busy[key] -= 1
            self._seen.update({key: time.monotonic()} if key in self._seen else {})

    def _release(self, tenant: str, body: bytes, line: str, path: dict[str, str]) -> bytes:
        cls = self._class(path["cls"]).cls
        key, _ = self._find(tenant, path["id"], cls)
        with self._calling(f"{cls.__name__}.release", tenant, line):
            self._drop(key)
        return b""

    def _drop(self, key: Key) -> None:
        """Release a component; a second time does nothing."""
        served = self._components.remove(*key)
        if self._seen.pop(key, None) is not None:
            self._clients.use(key[0]).add("components", -1)
        if served is not None and not self._session.closed:
            release(served.value)

    def release_idle(self, seconds: float) -> None:
        """Release what was built here and had no request for so many seconds; waits for the releases."""
        before = time.monotonic() - seconds
        for key, seen in tuple(self._seen.items()):
            if seen < before and not self._busy[key]:
                self._drop(key)

    def _calling(self, name: str, tenant: str, line: str) -> Any:
        found = contextlib.ExitStack()
        found.enter_context(called_from(line))
        found.enter_context(self._access_log.calling(name, tenant, line.rpartition(" ")[2]))
        return found


def _mesh(sizes: dict[str, Any]) -> DeviceMesh:
    try:
        return DeviceMesh.from_sizes(**sizes)
    except (ValueError, TypeError) as error:
        raise invalid(str(error)) from None


def _status_of(error: Exception) -> tuple[int, str, str]:
    """Status, type and message of a failed request."""
    if isinstance(error, RefusedError):
        return error.status, error.kind, error.why
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    if isinstance(error, TypeError) and not isinstance(error, RemoteCallError):
        status = 400  # it was not sent
    failures = getattr(error, "failures", ())
    kind = failures[0].type_name if failures else type(error).__name__
    message = failures[0].message if failures else str(error).partition("\n")[0]
    return status, kind.rpartition(".")[2], message.encode("utf-8", "replace").decode()[:MOST_CHARACTERS]
