"""`serve`: the remote classes of a session for clients that hold a token; safe by default."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import sys
from typing import TYPE_CHECKING

import uvicorn

from twinkle_http.loopback import is_loopback
from twinkle_http.plain.catalogue import Catalogue
from twinkle_http.plain.json_api import JsonApi
from twinkle_http.plain.json_routes import json_routes
from twinkle_http.server.app import make_app
from twinkle_http.server.calls.call_executor import CallExecutor
from twinkle_http.server.clients.client_api import ClientApi
from twinkle_http.server.clients.client_routes import ClientRoutes
from twinkle_http.server.clients.clients import Clients
from twinkle_http.server.clients.quota import quota_of
from twinkle_http.server.clients.restarts import ServedRestarts
from twinkle_http.server.clients.watcher import Watcher
from twinkle_http.server.components import ServedClasses
from twinkle_http.server.requests.access_log import AccessLog
from twinkle_http.server.requests.auth import Auth, own_hosts
from twinkle_http.server.requests.guard import MOST_HEAD_BYTES, Guard
from twinkle_http.server.requests.gzip_responses import GzipResponses
from twinkle_http.server.requests.timeouts import Connections
from twinkle_http.server.server import HttpServer
from twinkle_http.wire.limits import Limits
from twinkle_remote.backends.serving import running_session
from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_http.server.clients.quota import Quota
    from twinkle_remote.backends.serving import ServedSession, ServeOptions

_LAST_PORT = 65535


def serve(classes: Iterable[type], options: ServeOptions) -> HttpServer:
    """Serve remote classes of the running session: what `twinkle_remote.serve` calls."""
    _check(options)
    most = quota_of(options.quota)
    session = running_session()
    auth, served = Auth(options.token), ServedClasses(classes)
    sees_all = auth.watcher(options.metrics_of_all)
    sock = _bound(options.host, options.port)
    api, watcher = _client_api(session, served, options, most, sees_all)
    plain = JsonApi(api, Catalogue(served), tuple(session.groups))
    connections = Connections()
    others = make_app(api, json_routes(plain))
    names = own_hosts(options.host, sock.getsockname()[1], options.hosts)
    app = GzipResponses(ClientRoutes(api, others))
    guard = Guard(app, auth, names, connections, api.access_log)
    url = _url(options.host, sock, options.tls)
    server = HttpServer(api, watcher, auth, _config(guard, connections, options.tls), sock, url)
    _start(server)
    if auth.token is not None:
        print(f"twinkle serves at {server.address}, token: {auth.token}", file=sys.stderr, flush=True)
    return server


def _url(host: str, sock: socket.socket, tls: tuple[str, str] | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{sock.getsockname()[1]}"


def _start(server: HttpServer) -> None:
    try:
        server.start()
    except BaseException:
        with contextlib.suppress(Exception):  # the first error says why it did not start
            server.close(0.0)
        raise


def _check(options: ServeOptions) -> None:
    host, port, tls = options.host, options.port, options.tls
    if type(port) is not int or not 0 <= port <= _LAST_PORT:
        raise ValueError(f"port={port!r} must be from 0 to {_LAST_PORT}; 0 takes any free one")
    if not (is_loopback(host) or tls or options.insecure):
        raise BackendError(
            f"host={host!r} can be reached from other machines, and the token would be sent in plain text: give "
            "tls=(certificate, key), or insecure=True"
        )
    if tls is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*tls)
        except OSError as error:
            raise BackendError(f"tls={tls!r} cannot be used: {error.strerror or error}") from None
    if options.max_body < 1024 or not options.lease > 0:
        raise ValueError(
            f"max_body={options.max_body} is bytes, at or above 1024, and lease={options.lease} is seconds above 0"
        )


def _client_api(
    session: ServedSession, served: ServedClasses, options: ServeOptions, quota: Quota, sees_all: str | None
) -> tuple[ClientApi, Watcher]:
    limits = Limits(body=options.max_body, tree=min(Limits().tree, options.max_body))
    watcher = Watcher(session)
    access_log = AccessLog()
    clients = Clients(options.lease, secrets.token_hex(6), quota)
    calls = CallExecutor(session, served, watcher, limits, access_log, ServedRestarts(session, clients))
    return ClientApi(session, calls, clients, limits, access_log, sees_all), watcher


def _config(guard: Guard, connections: Connections, tls: tuple[str, str] | None) -> uvicorn.Config:
    return uvicorn.Config(
        guard,
        http=connections.protocol(),
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=30,
        limit_concurrency=2000,
        ssl_certfile=tls[0] if tls else None,
        ssl_keyfile=tls[1] if tls else None,
    )


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=512)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else an answer of two writes waits for 40 ms
        return sock
    except OSError as error:
        raise BackendError(f"the server cannot listen at {host}:{port}: {error.strerror or error}") from None
