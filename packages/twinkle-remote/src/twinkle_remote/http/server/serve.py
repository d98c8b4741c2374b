"""`serve`: the remote classes of a session for clients that hold a token; safe by default."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import sys
from typing import TYPE_CHECKING

import uvicorn

from twinkle_remote.errors import BackendError
from twinkle_remote.http.loopback import is_loopback
from twinkle_remote.http.plain.catalogue import Catalogue
from twinkle_remote.http.plain.routes import plain_routes
from twinkle_remote.http.plain.service import PlainService
from twinkle_remote.http.server.access import Access, own_hosts
from twinkle_remote.http.server.app import make_app
from twinkle_remote.http.server.calls import CallMaker
from twinkle_remote.http.server.client_app import ClientApp
from twinkle_remote.http.server.clients import Clients
from twinkle_remote.http.server.components import ServedClasses
from twinkle_remote.http.server.gate import Gate
from twinkle_remote.http.server.journal import Journal
from twinkle_remote.http.server.pace import Connections
from twinkle_remote.http.server.quota import quota_of
from twinkle_remote.http.server.revival import Revival
from twinkle_remote.http.server.server import Server
from twinkle_remote.http.server.service import Service
from twinkle_remote.http.server.watcher import Watcher
from twinkle_remote.http.server.zipped import Zipped
from twinkle_remote.http.wire.limits import Limits
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twinkle_remote.http.server.quota import Quota
    from twinkle_remote.sessions.runtime import Runtime

MAX_BODY = 4 << 30

_LAST_PORT = 65535


def serve(
    classes: Iterable[type],
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | Mapping[str, str] | None = None,
    tls: tuple[str, str] | None = None,
    max_body: int = MAX_BODY,
    lease: float = 60.0,
    insecure: bool = False,
    hosts: Iterable[str] = (),
    quota: Mapping[str, int] | None = None,
    metrics_of_all: str | None = None,
) -> Server:
    """Serve remote classes of the running session over HTTP, in a thread of this process.

    Args:
        classes: Remote classes that clients may build and call; nothing else can be reached.
        host: Address to bind; beyond this machine only with `tls` or `insecure`.
        port: Port; 0 for any free one.
        token: The token that clients hold, or one for each tenant by name. None makes one and shows it once on
            standard error.
        tls: Files of the certificate and of its key.
        max_body: Bytes of one request, at or above 1024.
        lease: Seconds after which a client that was not heard of loses its components and results, above 0.
        insecure: Plain HTTP beyond this machine: whoever sees the traffic has the token.
        hosts: Further Host headers that are accepted, as of a proxy before the server.
        quota: The most that one token may hold at a time, over all its clients: "components" (1000), "calls" in flight
            (4096), "results" that are in use (200,000), "bytes" of these (2**38).
        metrics_of_all: The tenant whose `/metrics` has the figures of all tenants; others see their own. One token for
            all sees all.

    Returns:
        The server; it runs until it is closed.

    Raises:
        NotInitializedError: There is no session.
        BackendError: The address is beyond this machine, and there is neither `tls` nor `insecure`; or it is taken.
        ValueError: A token or another option is not valid.
        TypeError: A class is no remote class.
    """
    _check(host, port, tls, insecure, max_body, lease)
    most = quota_of(quota)
    runtime = running()
    access, served = Access(token), ServedClasses(classes)
    sees_all = access.watcher(metrics_of_all)
    sock = _bound(host, port)
    service, watcher = _service(runtime, served, max_body, lease, most, sees_all)
    plain = PlainService(service, Catalogue(served), tuple(runtime.groups))
    connections = Connections()
    others = make_app(service, plain_routes(plain))
    app, names = Zipped(ClientApp(service, others)), own_hosts(host, sock.getsockname()[1], hosts)
    gate = Gate(app, access, names, connections, service.journal)
    url = _url(host, sock, tls)
    server = Server(service, watcher, access, _config(gate, connections, tls), sock, url)
    _start(server)
    if access.token is not None:
        print(f"twinkle serves at {server.address}, token: {access.token}", file=sys.stderr, flush=True)
    return server


def _url(host: str, sock: socket.socket, tls: tuple[str, str] | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{sock.getsockname()[1]}"


def _start(server: Server) -> None:
    try:
        server.start()
    except BaseException:
        with contextlib.suppress(Exception):
            server.close(0.0)
        raise


def _check(host: str, port: int, tls: tuple[str, str] | None, insecure: bool, max_body: int, lease: float) -> None:
    if type(port) is not int or not 0 <= port <= _LAST_PORT:
        raise ValueError(f"port={port!r} must be from 0 to {_LAST_PORT}; 0 takes any free one")
    if not (is_loopback(host) or tls or insecure):
        raise BackendError(
            f"host={host!r} can be reached from other machines, and the token would travel in plain text: give "
            "tls=(certificate, key), or insecure=True"
        )
    if tls is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*tls)
        except OSError as error:
            raise BackendError(f"tls={tls!r} cannot be used: {error.strerror or error}") from None
    if max_body < 1024 or not lease > 0:
        raise ValueError(f"max_body={max_body} is bytes, at or above 1024, and lease={lease} is seconds above 0")


def _service(
    runtime: Runtime, served: ServedClasses, max_body: int, lease: float, quota: Quota, sees_all: str | None
) -> tuple[Service, Watcher]:
    limits = Limits(body=max_body, tree=min(Limits().tree, max_body))
    watcher = Watcher(runtime)
    journal = Journal()
    clients = Clients(lease, secrets.token_hex(6), quota)
    maker = CallMaker(runtime, served, watcher, limits, journal, Revival(runtime, clients))
    return Service(runtime, maker, clients, limits, journal, sees_all), watcher


def _config(gate: Gate, connections: Connections, tls: tuple[str, str] | None) -> uvicorn.Config:
    return uvicorn.Config(
        gate,
        http=connections.protocol(),
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
