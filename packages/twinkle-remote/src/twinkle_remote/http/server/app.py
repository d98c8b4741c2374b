"""The routes of the server, by kind: health, metrics, and those of Twinkle's own client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from twinkle_remote.http.registered import TYPES
from twinkle_remote.http.server.body import RefusedError, read_body
from twinkle_remote.http.server.metrics import CONTENT_TYPE, metrics_text
from twinkle_remote.http.wire.decode import value_of
from twinkle_remote.http.wire.errors import WireFormatError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request

    from twinkle_remote.http.server.clients import RemoteClient
    from twinkle_remote.http.server.service import Service
    from twinkle_remote.http.wire.frame import WireMessage

    Handler = Callable[[Request, RemoteClient], Awaitable[Response]]

ROOT = "/twinkle/1"
_BINARY = "application/x-twinkle"
_ANSWER_CHUNK = 8 << 20  # bytes; the event loop writes one while the client reads, and waits for it


def make_app(service: Service, more: Sequence[Route] = ()) -> Starlette:
    """The application.

    Args:
        service: Answers the requests.
        more: Further routes.
    """

    async def metrics(request: Request) -> Response:
        return Response(metrics_text(service.journal, service.gauges()), headers={"content-type": CONTENT_TYPE})

    routes = [Route("/health", _health), Route("/metrics", metrics), *client_routes(service), *more]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_route, Exception: _broken})


async def _no_route(request: Request, error: Any) -> Response:
    return _refused(request, error.status_code, "NoRoute", "there is nothing here, or not for this verb")


async def _broken(request: Request, error: Exception) -> Response:
    return _refused(request, 500, "Internal", "the server failed to answer; its log says why")


async def _health(request: Request) -> Response:
    return Response(status_code=204)


def client_routes(service: Service) -> Sequence[Route]:
    """The routes of Twinkle's own client."""

    async def opened(request: Request) -> Response:
        return _binary(service.open(request.scope["state"]["tenant"]))

    async def call(request: Request, client: RemoteClient) -> Response:
        body = await read_body(request.scope, request.receive, service.limits)
        return _binary(await service.call(client, _number(request), body))

    async def news(request: Request, client: RemoteClient) -> Response:
        return _binary(await service.news(client, await _small(service, request)))

    async def late(request: Request, client: RemoteClient) -> Response:
        asked = await _small(service, request)
        return _binary(await run_in_threadpool(service.late, client, asked))

    async def cancel(request: Request, client: RemoteClient) -> Response:
        asked = await _small(service, request)
        return _binary(await run_in_threadpool(service.cancel, client, asked))

    async def value(request: Request, client: RemoteClient) -> Response:
        message = await run_in_threadpool(service.value, client, request.path_params["name"])
        return _streamed(message)

    async def rows(request: Request, client: RemoteClient) -> Response:
        asked = await _small(service, request)
        return _streamed(await run_in_threadpool(service.rows, client, asked))

    async def ranks(request: Request, client: RemoteClient) -> Response:
        asked = await _small(service, request)
        return _binary(await run_in_threadpool(service.ranks, client, asked))

    async def close(request: Request, client: RemoteClient) -> Response:
        await run_in_threadpool(service.close, client)
        return Response(status_code=204)

    return [
        _route(service, "/open", "POST", opened),
        _client_route(service, "/call", "POST", call),
        _client_route(service, "/news", "POST", news),
        _client_route(service, "/late", "POST", late),
        _client_route(service, "/cancel", "POST", cancel),
        _client_route(service, "/values/{name}", "GET", value),
        _client_route(service, "/rows", "POST", rows),
        _client_route(service, "/ranks", "POST", ranks),
        _client_route(service, "/close", "POST", close),
    ]


def _client_route(service: Service, path: str, method: str, handler: Handler) -> Route:
    """A route of a client that is open."""

    async def answer(request: Request) -> Response:
        client = service.clients.find(request.headers.get("twinkle-client", ""), request.scope["state"]["tenant"])
        client.busy += 1
        try:
            return await handler(request, client)
        finally:
            client.busy -= 1

    return _route(service, path, method, answer)


def _route(service: Service, path: str, method: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusedError as error:
            return _refused(request, error.status, error.kind, error.why)
        except WireFormatError as error:
            return _refused(request, 400, "Malformed", str(error))

    return Route(ROOT + path, answer, methods=[method])


def _refused(request: Request, status: int, kind: str, why: str) -> Response:
    state = request.scope["state"]
    state["error"] = kind
    text = json.dumps({"error": {"type": kind, "message": why, "request": state["request"]}})
    headers = {"connection": "close"} if status in (400, 408, 413, 415) else {}
    return Response(text, status, headers, "application/json")


def _binary(content: bytes) -> Response:
    return Response(content, media_type=_BINARY)


def _streamed(message: WireMessage) -> Response:
    headers = {"content-length": str(message.nbytes)}
    return StreamingResponse(_each(message.chunks(_ANSWER_CHUNK)), headers=headers, media_type=_BINARY)


def _number(request: Request) -> int:
    text = request.headers.get("twinkle-request", "")
    if not text.isdecimal() or len(text) > 18:
        raise RefusedError(400, "a call has a number: Twinkle-Request: 1", "Malformed")
    return int(text)


async def _small(service: Service, request: Request) -> dict[str, Any]:
    body = await read_body(request.scope, request.receive, service.limits)
    value = value_of(body.tree, body.buffers, TYPES, limits=service.limits)
    if not isinstance(value, dict):
        raise WireFormatError("a request is a dict")
    try:
        for key, kind in (("name", str), ("seconds", float), ("after", int), ("floor", int)):
            if key in value:
                value[key] = kind(value[key])
    except (TypeError, ValueError) as error:
        raise WireFormatError(str(error)) from None
    return value


async def _each(chunks: Any) -> Any:
    for chunk in chunks:
        yield chunk
