"""The guard before every route: the frame of a request, its Host, its token; nothing else is read before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from twinkle_http.server.requests.access_log import AccessLog
    from twinkle_http.server.requests.auth import Auth
    from twinkle_http.server.requests.timeouts import Connections

    Send = Callable[[Any], Awaitable[None]]
    Receive = Callable[[], Awaitable[Any]]
    App = Callable[[Any, Receive, Send], Awaitable[None]]

_ONCE = (b"host", b"content-length", b"transfer-encoding", b"authorization")
_JSON = (b"content-type", b"application/json")
_CLOSE = (b"connection", b"close")
MOST_HEAD_BYTES = 64 * 1024


class Guard:
    """An ASGI application before another one.

    Args:
        app: The application for accepted requests; `scope["state"]["tenant"]` names the tenant.
        auth: The tokens.
        hosts: Host headers that name this server; a local address of the connection is one too.
        connections: The open connections.
        access_log: Counts and logs requests.
    """

    def __init__(
        self, app: App, auth: Auth, hosts: frozenset[bytes], connections: Connections, access_log: AccessLog
    ) -> None:
        self._app = app
        self._auth = auth
        self._hosts = hosts
        self._connections = connections
        self._access_log = access_log

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        headers = scope["state"]["headers"] = dict(scope["headers"])
        entry = self._access_log.begin(scope, headers)
        sending = entry.sending(send)
        if b"upgrade" in headers:  # to no protocol of this server: what follows is not read
            sending = _last(sending)
        place = self._connections.begin(scope["client"])
        try:
            refusal = self._refusal(scope, headers)
            if refusal is None:
                await self._app(scope, receive, sending)
            else:
                await refuse(sending, *refusal, entry.request)
        finally:
            self._connections.end(place)
            self._access_log.end(entry)

    def _refusal(self, scope: Any, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        if scope["http_version"] not in ("1.0", "1.1"):
            return 400, "the server speaks HTTP/1.1"
        if not scope["raw_path"].startswith(b"/"):
            return 400, "the target of a request is a path here"
        if sum([len(name) + len(value) + 4 for name, value in scope["headers"]]) > MOST_HEAD_BYTES:
            return 400, f"the head of a request has at most {MOST_HEAD_BYTES} bytes here"
        if b"transfer-encoding" in headers and b"content-length" in headers:
            return 400, "a request has Content-Length or Transfer-Encoding, not both"
        if len(headers) < len(scope["headers"]) and _has_two(scope["headers"]):
            return 400, "a request has one Host, one length and one token"
        if not self._is_host(headers.get(b"host", b"").lower(), scope["server"]):
            return 421, "the Host header does not name this server"
        if scope["path"] == "/health":
            return None
        tenant = self._auth.tenant(headers.get(b"authorization", b""))
        if tenant is None:
            scope["state"]["error"] = "without a known token"
            return 401, "the token is not known here: send Authorization: Bearer <token>"
        scope["state"]["tenant"] = tenant
        return None

    def _is_host(self, host: bytes, server: tuple[str, int] | None) -> bool:
        if host in self._hosts:
            return True
        if server is None:
            return False
        name, port = server
        return host == f"{f'[{name}]' if ':' in name else name}:{port}".encode("ascii")


def _last(send: Send) -> Send:
    """A `send` whose answer is the last one of its connection."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), _CLOSE]
        await send(message)

    return sending


def _has_two(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    names = [name for name, _ in headers]
    return any(names.count(name) > 1 for name in _ONCE)


async def refuse(send: Send, status: int, why: str, request: str) -> None:
    """Answer with an error, and close the connection: the rest of the request is not read."""
    body = json.dumps({"error": {"type": "Refused", "message": why, "request": request}}).encode()
    headers = [_JSON, (b"content-length", str(len(body)).encode()), _CLOSE]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
