"""The routes of a server behind its gate: those of Twinkle's own client, health, and those of JSON.

It is plain ASGI: small calls do not pay for routes and request objects. What may wait is done in threads.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_http.errors import WireFormatError
from twinkle_http.gate import RefusedError, read_body, stops
from twinkle_http.json_api import JsonRequest
from twinkle_http.messages import (
    CallRequest,
    CallUpdate,
    ResultRequest,
    UpdateAnswer,
    UpdateRequest,
    as_envelope,
    packed,
    unpacked,
)
from twinkle_http.server.calls import result_of
from twinkle_http.wire import MOST_HEAD_BYTES, encode, opened

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from twinkle_http.json_api import JsonApi
    from twinkle_http.server.calls import Calls
    from twinkle_http.server.clients import Clients, RemoteClient
    from twinkle_http.wire import WireMessage

    Send = Callable[[Any], Awaitable[None]]
    Receive = Callable[[], Awaitable[Any]]
    Reply = bytes | WireMessage
    Handler = Callable[[Any, bytearray, RemoteClient], Awaitable[Reply]]

_ANSWER_CHUNK = 8 << 20  # bytes; the event loop writes one while the client reads, and waits for it
_SENT_SECONDS = 1.0  # after which a call was taken, though it may not have been sent yet
_EAGER_SECONDS = 0.05  # the same for one whose caller waits for the value
_LONGEST_POLL_SECONDS = 20.0
_DRAINING_POLL_SECONDS = 0.2


class App:
    """An ASGI application, which takes bodies of at most `most` bytes.

    Attributes:
        draining: No new call is taken.
    """

    def __init__(self, described: dict[str, Any], calls: Calls, clients: Clients, json: JsonApi, most: int) -> None:
        self.draining = False
        self._described, self._calls, self._clients, self._json, self._most = described, calls, clients, json, most
        self._handlers: dict[str, Handler] = {
            "call": self._call,
            "updates": self._updates,
            "read": self._of_result(calls.read),
            "cancel": self._of_result(calls.cancel),
            "close": self._close,
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        status, kind = 200, b"application/x-twinkle"
        answer: Reply = b""
        match scope["method"], scope["path"].split("/")[1:]:
            case _, ["health"]:
                status = 503 if self.draining else 204
            case "POST", ["twinkle", "1", "open"]:
                answer = self._open(scope)
            case "POST", ["twinkle", "1", name] if name in self._handlers:
                answer = await self._of_client(self._handlers[name], scope, receive)
            case verb, path:
                kind = b"application/json"
                status, answer = await self._of_json(verb, path, scope, receive)
        parts: Iterable[bytes | memoryview] = (answer,) if isinstance(answer, bytes) else answer.chunks(_ANSWER_CHUNK)
        size = len(answer) if isinstance(answer, bytes) else answer.nbytes
        headers = [(b"content-length", b"%d" % size), (b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers if status != 204 else []})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async def _of_json(self, verb: str, path: list[str], scope: Any, receive: Receive) -> tuple[int, bytes]:
        """Status and body of the answer to a request in JSON."""
        work: Callable[..., Awaitable[bytes]]
        match verb, path:
            case "GET", ["openapi.json"]:
                return 200, await result_of(self._json.described)
            case "POST", ["v1", _]:
                status, work = 201, self._json.create
            case "POST", ["v1", _, _, _]:
                status, work = 200, self._json.call
            case "DELETE", ["v1", _, _]:
                status, work = 204, self._json.release
            case _:
                raise RefusedError(404, "there is nothing here, or not for this verb", "NoRoute")
        body = await read_body(scope, receive, min(self._most, MOST_HEAD_BYTES))
        self._check_running()
        state = scope["state"]
        return status, await work(JsonRequest(state["tenant"], state["request"], bytes(body)), *path[1:])

    def _open(self, scope: Any) -> bytes:
        """A new client, and the description of the session."""
        self._check_running()
        return encode({**self._described, "client": self._clients.open(scope["state"]["tenant"]).name}).to_bytes()

    def _check_running(self) -> None:
        if self.draining:
            raise stops()

    async def _of_client(self, handler: Handler, scope: Any, receive: Receive) -> Reply:
        """The answer to a request of a client that is open."""
        state = scope["state"]
        name = state["headers"].get(b"twinkle-client", b"").decode("latin-1")
        client = self._clients.find(name, state["tenant"])
        with client.asking():
            try:
                return await handler(scope, await read_body(scope, receive, self._most), client)
            except WireFormatError as error:
                raise RefusedError(400, str(error), "Malformed") from None

    async def _call(self, scope: Any, body: bytearray, client: RemoteClient) -> bytes:
        """The answer to a call: its end if the caller waits for it, else that it was sent; the same one if asked again.

        Raises:
            RefusedError: It was answered before, and the client has the answer.
        """
        text = scope["state"]["headers"].get(b"twinkle-request", b"")
        if not text.isdigit() or len(text) > 18:
            raise RefusedError(400, "a call has a number: Twinkle-Request: 1", "Malformed")
        number = int(text)
        answer = client.answers.get(number)
        if answer is None:
            if number < client.floor:
                raise RefusedError(409, f"request {number} was answered before", "Repeated")
            tree, buffers = opened(body)
            request = as_envelope(tree, CallRequest)
            self._check_running()
            client.acknowledge(request.floor, request.drop)
            client.check_backlog()
            loop = asyncio.get_running_loop()
            answer = client.answers[number] = loop.create_future()
            seconds = _EAGER_SECONDS if request.eager else _SENT_SECONDS
            timer = loop.call_later(seconds, client.take, CallUpdate(number, accepted=True))
            answer.add_done_callback(lambda _: timer.cancel())
            task = loop.create_task(self._calls.run(client, number, request, buffers))
            client.running.add(task)
            task.add_done_callback(client.running.discard)
        return await asyncio.shield(answer)

    async def _updates(self, scope: Any, body: bytearray, client: RemoteClient) -> bytes:
        request = unpacked(body, UpdateRequest)
        client.acknowledge(request.floor, request.drop)
        longest = _DRAINING_POLL_SECONDS if self.draining else min(_LONGEST_POLL_SECONDS, self._clients.lease / 2)
        found = await client.updates(request.after, max(0.0, min(longest, request.seconds)))
        return packed(UpdateAnswer(list(found), self.draining))

    def _of_result(self, work: Callable[..., WireMessage | None]) -> Handler:
        async def handler(scope: Any, body: bytearray, client: RemoteClient) -> Reply:
            tree, buffers = opened(body)
            request = as_envelope(tree, ResultRequest)
            return await result_of(partial(work, client, request, buffers)) or b""

        return handler

    async def _close(self, scope: Any, body: bytearray, client: RemoteClient) -> bytes:
        await self._calls.close(client)
        return b""
