"""The requests of Twinkle's own client, as plain ASGI: small calls do not pay for routes and request objects."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from twinkle_http.server.requests.body import RefusedError, read_body
from twinkle_http.wire.decode import value_of
from twinkle_http.wire.envelopes import UNREAD, UPDATE_REQUEST
from twinkle_http.wire.errors import WireFormatError
from twinkle_http.wire.frame import TREES
from twinkle_http.wire.in_head import HEADER, MOST_BYTES, to_header
from twinkle_remote.values import TYPES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinkle_http.server.clients.client_api import ClientApi
    from twinkle_http.server.clients.clients import RemoteClient
    from twinkle_http.wire.frame import WireMessage

    Send = Callable[[Any], Awaitable[None]]
    Receive = Callable[[], Awaitable[Any]]
    App = Callable[[Any, Receive, Send], Awaitable[None]]
    Answer = bytes | WireMessage | None
    Handler = Callable[[Any, Receive, RemoteClient], Awaitable[Answer]]

ROOT = "/twinkle/1"
_VALUES = f"{ROOT}/values/"
_TYPE = (b"content-type", b"application/x-twinkle")
_JSON = (b"content-type", b"application/json")
_IN_HEAD = HEADER.encode("ascii")
_CLOSE = (b"connection", b"close")
_ENDING = (400, 408, 413, 415)  # the rest of the request is not read
_ANSWER_CHUNK = 8 << 20  # bytes; the event loop writes one while the client reads, and waits for it


class ClientRoutes:
    """An ASGI application before another one, which gets the requests that are not of Twinkle's own client.

    Args:
        api: Answers them.
        others: The other application.
    """

    def __init__(self, api: ClientApi, others: App) -> None:
        self._api = api
        self._others = others
        posts: dict[str, Handler] = {
            "call": self._call,
            "updates": self._updates,
            "late": self._late,
            "cancel": self._cancel,
            "withdraw": self._withdraw,
            "rows": self._rows,
            "close": self._close,
        }
        self._posts = {f"{ROOT}/{name}": partial(self._of_client, handler) for name, handler in posts.items()}
        self._values = partial(self._of_client, self._value)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        handler = self._handler(scope["method"], scope["path"])
        if handler is None:
            await self._others(scope, receive, send)
            return
        try:
            answer = await handler(scope, receive)
        except RefusedError as error:
            await _refuse(scope, send, error.status, error.kind, error.why)
        except WireFormatError as error:
            await _refuse(scope, send, 400, "Malformed", str(error))
        except Exception:
            await _refuse(scope, send, 500, "Internal", "the server failed to answer; its log says why")
            raise
        else:
            await _answer(send, answer, in_head=_IN_HEAD in scope["state"]["headers"])

    def _handler(self, method: str, path: str) -> Callable[[Any, Receive], Awaitable[Answer]] | None:
        if method == "POST":
            return self._open if path == f"{ROOT}/open" else self._posts.get(path)
        return self._values if method == "GET" and path.startswith(_VALUES) else None

    async def _open(self, scope: Any, receive: Receive) -> bytes:
        return self._api.open(scope["state"]["tenant"])

    async def _of_client(self, handler: Handler, scope: Any, receive: Receive) -> Answer:
        """The answer to a request of a client that is open."""
        state = scope["state"]
        name = state["headers"].get(b"twinkle-client", b"").decode("latin-1")
        client = self._api.clients.find(name, state["tenant"])
        client.busy += 1
        try:
            return await handler(scope, receive, client)
        finally:
            client.busy -= 1

    async def _call(self, scope: Any, receive: Receive, client: RemoteClient) -> bytes:
        body = await read_body(scope, receive, self._api.limits, UNREAD)
        return await self._api.call(client, _number(scope), body)

    async def _updates(self, scope: Any, receive: Receive, client: RemoteClient) -> bytes:
        body = await read_body(scope, receive, self._api.limits, UPDATE_REQUEST)
        return await self._api.updates(client, body.tree.root)

    async def _late(self, scope: Any, receive: Receive, client: RemoteClient) -> bytes:
        return await run_in_threadpool(self._api.late, client, await self._small(scope, receive))

    async def _cancel(self, scope: Any, receive: Receive, client: RemoteClient) -> bytes:
        return await run_in_threadpool(self._api.cancel, client, await self._small(scope, receive))

    async def _withdraw(self, scope: Any, receive: Receive, client: RemoteClient) -> bytes:
        return await run_in_threadpool(self._api.withdraw, client, await self._small(scope, receive))

    async def _value(self, scope: Any, receive: Receive, client: RemoteClient) -> WireMessage:
        return await run_in_threadpool(self._api.value, client, scope["path"].removeprefix(_VALUES))

    async def _rows(self, scope: Any, receive: Receive, client: RemoteClient) -> WireMessage:
        return await run_in_threadpool(self._api.rows, client, await self._small(scope, receive))

    async def _close(self, scope: Any, receive: Receive, client: RemoteClient) -> None:
        await run_in_threadpool(self._api.close, client)

    async def _small(self, scope: Any, receive: Receive) -> dict[str, Any]:
        body = await read_body(scope, receive, self._api.limits, TREES)
        value = value_of(body.tree, body.buffers, TYPES, limits=self._api.limits)
        if not isinstance(value, dict):
            raise WireFormatError("a request is a dict")
        try:
            for key, kind in (("name", str), ("seconds", float)):
                if key in value:
                    value[key] = kind(value[key])
        except (TypeError, ValueError) as error:
            raise WireFormatError(str(error)) from None
        return value


def _number(scope: Any) -> int:
    text = scope["state"]["headers"].get(b"twinkle-request", b"")
    if not text.isdigit() or len(text) > 18:
        raise RefusedError(400, "a call has a number: Twinkle-Request: 1", "Malformed")
    return int(text)


async def _answer(send: Send, answer: Answer, *, in_head: bool) -> None:
    if answer is None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
        return
    if isinstance(answer, bytes):  # with no more headers than needed: their reading is a good part of a small call
        headers = []
        if in_head and len(answer) <= MOST_BYTES:  # before the length: without that, a head is cut off
            headers, answer = [(_IN_HEAD, to_header(answer).encode("ascii"))], b""
        headers.append((b"content-length", b"%d" % len(answer)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
        return
    headers = [(b"content-length", b"%d" % answer.nbytes), _TYPE]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for chunk in answer.chunks(_ANSWER_CHUNK):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body"})


async def _refuse(scope: Any, send: Send, status: int, kind: str, why: str) -> None:
    state = scope["state"]
    state["error"] = kind
    body = json.dumps({"error": {"type": kind, "message": why, "request": state["request"]}}).encode()
    headers = [(b"content-length", b"%d" % len(body)), _JSON]
    if status in _ENDING:
        headers.append(_CLOSE)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
