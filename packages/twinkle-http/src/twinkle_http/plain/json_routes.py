"""The routes of plain JSON: one for each verb, none for a class."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from twinkle_http.plain.failures import answer_of, refusal_of
from twinkle_http.plain.openapi import openapi
from twinkle_http.server.clients.client_routes import ROOT
from twinkle_http.server.requests.body import RefusedError, take_body
from twinkle_http.stub.describe import describe
from twinkle_http.wire.errors import WireFormatError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from starlette.requests import Request

    from twinkle_http.plain.json_api import JsonApi
    from twinkle_http.plain.json_client import JsonAnswer, JsonClient

    Work = Callable[[Request, JsonClient, bytes], Awaitable[JsonAnswer]]

KEY_HEADER = "idempotency-key"
_LONGEST_KEY = 200
_ENDING = (400, 408, 413, 415)  # the rest of the request is not read


def json_routes(api: JsonApi) -> Sequence[Route]:
    """The routes.

    Args:
        api: Answers them.
    """

    async def create(request: Request, client: JsonClient, body: bytes) -> JsonAnswer:
        return await api.create(client, request.path_params["cls"], body, _id(request))

    async def call(request: Request, client: JsonClient, body: bytes) -> JsonAnswer:
        cls, id_, method = (request.path_params[name] for name in ("cls", "id", "method"))
        return await api.call(client, cls, id_, method, body, _id(request))

    async def release(request: Request, client: JsonClient, body: bytes) -> JsonAnswer:
        return await api.release(client, request.path_params["cls"], request.path_params["id"], _id(request))

    async def described(request: Request) -> Response:
        return Response(openapi(api.catalogue.all()), media_type="application/json")

    async def classes(request: Request) -> Response:
        return Response(msgspec.json.encode(describe(api.catalogue)), media_type="application/json")

    return [
        _route(api, "/v1/{cls}", "POST", create),
        _route(api, "/v1/{cls}/{id}/{method}", "POST", call),
        _route(api, "/v1/{cls}/{id}", "DELETE", release),
        Route("/openapi.json", described, methods=["GET"]),
        Route(f"{ROOT}/classes", classes, methods=["GET"]),
    ]


def _route(api: JsonApi, path: str, method: str, work: Work) -> Route:
    async def answer(request: Request) -> Response:
        body = bytearray()
        try:
            await take_body(request.scope, request.receive, api.most_bytes, body.extend)
            given = await _while_there(request, _answered(request, bytes(body)))
        except RefusedError as error:
            given = replace(refusal_of(error), request=_id(request))
        except WireFormatError as error:
            given = replace(answer_of(400, "Malformed", str(error)), request=_id(request))
        request.scope["state"].update(call=given.call, error=given.error)
        content = given.body
        if given.error:
            told = {"type": given.error, "message": given.message, "request": given.request}
            content = msgspec.json.encode({"error": told})
        headers = {"connection": "close"} if given.status in _ENDING else {}
        return Response(content, given.status, headers, "application/json" if content else None)

    async def _answered(request: Request, body: bytes) -> JsonAnswer:
        key = request.headers.get(KEY_HEADER, "")
        if len(key) > _LONGEST_KEY or not key.isascii():
            raise RefusedError(400, f"a key has at most {_LONGEST_KEY} ASCII characters", "Malformed")
        digest = hashlib.sha256(f"{request.method} {request.url.path}\n".encode() + body).digest()
        client = api.client(request.scope["state"]["tenant"])

        async def run() -> JsonAnswer:
            try:
                return replace(await work(request, client, body), request=_id(request))
            except RefusedError as error:
                return replace(refusal_of(error), request=_id(request))

        return await client.once(key, digest, run)

    return Route(path, answer, methods=[method])


async def _while_there(request: Request, answering: Coroutine[Any, Any, JsonAnswer]) -> JsonAnswer:
    """An answer; it is given up when the client hangs up, unless a key lets another request ask for it."""
    if request.headers.get(KEY_HEADER):
        return await answering
    work, gone = asyncio.ensure_future(answering), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
            return answer_of(499, "ClientGone", "the client has hung up")
        return work.result()
    finally:
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _id(request: Request) -> str:
    return str(request.scope["state"].get("request", ""))
