"""The routes of a server: those of Twinkle's own client, health, and those of JSON.

The client's are plain ASGI: small calls do not pay for routes and request objects. What may wait is done in threads.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from twinkle_http.messages import (
    CALL_REQUEST,
    RESULT_REQUEST,
    UPDATE_REQUEST,
    CallUpdate,
    UpdateAnswer,
    WireFormatError,
    packed,
)
from twinkle_http.server.clients import MOST_UNREAD, NumberedAnswer
from twinkle_http.server.gate import RefusedError, read_body, refuse, stops
from twinkle_http.server.turn import result_of
from twinkle_http.wire import encode
from twinkle_remote.rows import TYPES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request

    from twinkle_http.messages import Limits, WireMessage
    from twinkle_http.server.calls import Calls
    from twinkle_http.server.clients import Clients, RemoteClient
    from twinkle_remote.backends.serving import ServedSession

    Send = Callable[[Any], Awaitable[None]]
    Receive = Callable[[], Awaitable[Any]]
    Reply = bytes | WireMessage | None
    Handler = Callable[[Any, Receive, RemoteClient], Awaitable[Reply]]

ROOT = "/twinkle/1/"
_TYPE = (b"content-type", b"application/x-twinkle")
_ANSWER_CHUNK = 8 << 20  # bytes; the event loop writes one while the client reads, and waits for it
_SENT_SECONDS = 1.0  # after which a call was taken, though it may not have been sent yet
_EAGER_SECONDS = 0.05  # the same for one whose caller waits for the value
_LONGEST_POLL_SECONDS = 20.0
_DRAINING_POLL_SECONDS = 0.2


class App:
    """An ASGI application behind the gate.

    Args:
        session: The session.
        calls: Makes calls.
        clients: The clients.
        limits: Bounds of a message.
        more: The routes of JSON.

    Attributes:
        draining: No new call is taken.
    """

    def __init__(
        self, session: ServedSession, calls: Calls, clients: Clients, limits: Limits, more: Sequence[Route]
    ) -> None:
        self.draining = False
        self._session, self._calls, self._clients, self._limits = session, calls, clients, limits

        async def health(request: Request) -> Response:
            return Response(status_code=503 if self.draining else 204)

        handlers = {HTTPException: _no_route, Exception: _broken}
        self._others = Starlette(routes=[Route("/health", health), *more], exception_handlers=handlers)
        self._handlers: dict[str, Handler] = {
            "call": self._call,
            "updates": self._updates,
            "read": self._read,
            "stacks": self._stacks,
            "cancel": self._cancel,
            "close": self._close,
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = scope["path"]
        name = path[len(ROOT) :] if scope["method"] == "POST" and path.startswith(ROOT) else ""
        if name != "open" and name not in self._handlers:
            await self._others(scope, receive, send)
            return
        try:
            answer = (
                self._open(scope) if name == "open" else await self._of_client(self._handlers[name], scope, receive)
            )
        except RefusedError as error:
            await refuse(scope, send, error.status, error.kind, error.why)
        except WireFormatError as error:
            await refuse(scope, send, 400, "Malformed", str(error))
        except Exception:
            await refuse(scope, send, 500, "Internal", "the server failed to answer; its log says why")
            raise
        else:
            await _answer(send, answer)

    def _open(self, scope: Any) -> bytes:
        """A new client, and the description of the session."""
        if self.draining:
            raise stops()
        client = self._clients.open(scope["state"]["tenant"])
        groups = {
            group.name: [group.ranks, group.device_type, group.visible_devices, group.gpus_per_worker, group.nodes]
            for group in self._session.groups.values()
        }
        described = {
            "client": client.name,
            "groups": groups,
            "any_group": self._session.mode == "local" and not groups,
            "lease": self._clients.lease,
            "max_body": self._limits.body,
        }
        return encode(described, TYPES).to_bytes()

    async def _of_client(self, handler: Handler, scope: Any, receive: Receive) -> Reply:
        """The answer to a request of a client that is open."""
        state = scope["state"]
        name = state["headers"].get(b"twinkle-client", b"").decode("latin-1")
        client = self._clients.find(name, state["tenant"])
        client.busy += 1
        try:
            return await handler(scope, receive, client)
        finally:
            client.busy -= 1

    async def _call(self, scope: Any, receive: Receive, client: RemoteClient) -> bytes:
        """The answer to a call: its end if the caller waits for it, else that it was sent; the same one if asked again.

        Raises:
            RefusedError: The number was used for another request.
        """
        number = _number(scope)
        body = await read_body(scope, receive, self._limits, CALL_REQUEST)
        answer = client.answers.get(number)
        if answer is None:
            if number < client.floor:
                raise RefusedError(409, f"request {number} was answered before", "Repeated")
            if self.draining:
                raise stops()
            client.acknowledge(body.root.floor)
            client.drop(body.root.drop)
            if client.backlog() >= MOST_UNREAD:
                raise RefusedError(429, "too many answers are not read: ask for updates", "TooMany")
            loop = asyncio.get_running_loop()
            answer = client.answers[number] = NumberedAnswer(body.digest, loop.create_future())
            seconds = _EAGER_SECONDS if body.root.eager else _SENT_SECONDS
            timer = loop.call_later(seconds, client.take, number, CallUpdate(f"r{number}", accepted=True))
            answer.data.add_done_callback(lambda _: timer.cancel())
            client.turn.put(partial(self._calls.make, client, number, body))
        if answer.digest != body.digest:
            raise RefusedError(409, f"request {number} was sent before with another body", "Repeated")
        return await asyncio.shield(answer.data)

    async def _updates(self, scope: Any, receive: Receive, client: RemoteClient) -> bytes:
        request = (await read_body(scope, receive, self._limits, UPDATE_REQUEST)).root
        client.acknowledge(request.floor)
        client.drop(request.drop)
        longest = _DRAINING_POLL_SECONDS if self.draining else min(_LONGEST_POLL_SECONDS, self._clients.lease / 2)
        found = await client.updates(request.after, max(0.0, min(longest, request.seconds)))
        return packed(UpdateAnswer(list(found), self.draining))

    async def _read(self, scope: Any, receive: Receive, client: RemoteClient) -> WireMessage:
        body = await read_body(scope, receive, self._limits, RESULT_REQUEST)
        return await result_of(partial(self._calls.read, client, body))

    async def _stacks(self, scope: Any, receive: Receive, client: RemoteClient) -> WireMessage:
        body = await read_body(scope, receive, self._limits, RESULT_REQUEST)
        return await result_of(partial(self._calls.stacks, client, body))

    async def _cancel(self, scope: Any, receive: Receive, client: RemoteClient) -> None:
        body = await read_body(scope, receive, self._limits, RESULT_REQUEST)
        await result_of(partial(self._calls.cancel, client, body))

    async def _close(self, scope: Any, receive: Receive, client: RemoteClient) -> None:
        self._clients.forget(client)
        await result_of(partial(self._calls.close, client))


def _number(scope: Any) -> int:
    text = scope["state"]["headers"].get(b"twinkle-request", b"")
    if not text.isdigit() or len(text) > 18:
        raise RefusedError(400, "a call has a number: Twinkle-Request: 1", "Malformed")
    return int(text)


async def _answer(send: Send, answer: Reply) -> None:
    if answer is None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
        return
    size, own_type = (len(answer), []) if isinstance(answer, bytes) else (answer.nbytes, [_TYPE])
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size), *own_type]}
    )
    if isinstance(answer, bytes):
        await send({"type": "http.response.body", "body": answer})
        return
    for chunk in answer.chunks(_ANSWER_CHUNK):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body"})


async def _no_route(request: Request, error: Any) -> Response:
    return _refused(request, error.status_code, "NoRoute", "there is nothing here, or not for this verb")


async def _broken(request: Request, error: Exception) -> Response:
    return _refused(request, 500, "Internal", "the server failed to answer; its log says why")


def _refused(request: Request, status: int, kind: str, why: str) -> Response:
    state = request.scope["state"]
    state["error"] = kind
    text = json.dumps({"error": {"type": kind, "message": why, "request": state["request"]}})
    return Response(text, status, media_type="application/json")
