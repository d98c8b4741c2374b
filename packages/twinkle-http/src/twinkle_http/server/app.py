"""The routes of the server that other programs use: health, metrics, and plain JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from twinkle_http.server.requests.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from twinkle_http.server.clients.client_api import ClientApi


def make_app(api: ClientApi, more: Sequence[Route] = ()) -> Starlette:
    """The application.

    Args:
        api: Answers the requests.
        more: Further routes.
    """

    async def metrics(request: Request) -> Response:
        text = api.metrics(request.scope["state"]["tenant"])
        return Response(text, headers={"content-type": CONTENT_TYPE})

    routes = [Route("/health", _health), Route("/metrics", metrics), *more]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_route, Exception: _broken})


async def _no_route(request: Request, error: Any) -> Response:
    return _refused(request, error.status_code, "NoRoute", "there is nothing here, or not for this verb")


async def _broken(request: Request, error: Exception) -> Response:
    return _refused(request, 500, "Internal", "the server failed to answer; its log says why")


async def _health(request: Request) -> Response:
    return Response(status_code=204)


def _refused(request: Request, status: int, kind: str, why: str) -> Response:
    state = request.scope["state"]
    state["error"] = kind
    text = json.dumps({"error": {"type": kind, "message": why, "request": state["request"]}})
    headers = {"connection": "close"} if status in (400, 408, 413, 415) else {}
    return Response(text, status, headers, "application/json")
