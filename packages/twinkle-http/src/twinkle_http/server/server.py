"""A server that runs in a thread of this process until it is closed or asked to end."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import uvicorn

from twinkle_remote import Server
from twinkle_remote.backends.serving import DRAIN_SECONDS, listen
from twinkle_remote.backends.support import Flag
from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import FrameType

    from twinkle_http.server.clients.client_api import ClientApi
    from twinkle_http.server.clients.watcher import Watcher
    from twinkle_http.server.requests.auth import Auth

_log = logging.getLogger("twinkle.http")
_START_SECONDS = 30.0
_TERMINATED = 143  # the convention of shells: 128 + the number of SIGTERM
LAST_UPDATE_SECONDS = 5.0


class HttpServer(Server):
    """A server of the components of one session, in a thread with an event loop of its own."""

    def __init__(
        self, api: ClientApi, watcher: Watcher, auth: Auth, config: uvicorn.Config, sock: socket.socket, url: str
    ) -> None:
        self.address = url
        self.token = auth.only()
        self._api = api
        self._watcher = watcher
        self._sock = sock
        self._uvicorn = uvicorn.Server(config)
        self._closed = Flag()
        self._closing = threading.Lock()
        self._before: Any = None
        _servers.add(self)
        self._stop_lines: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="twinkle-http", daemon=True)

    def __repr__(self) -> str:
        return f"<Server at {self.address}{', closed' if self._closed.is_set() else ''}>"

    def start(self) -> None:
        """Start to answer; returns when it does."""
        self._thread.start()
        until = time.monotonic() + _START_SECONDS
        while not self._uvicorn.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise BackendError(f"the server at {self.address} did not start")
            time.sleep(0.005)
        if self.token:  # all components are of this one's: it may see what their workers print
            self._stop_lines = listen(self._api.send_line)
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._terminate)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is closed; returns whether it is."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._closed.wait(0.5 if until is None else max(0.0, min(0.5, until - time.monotonic()))):
            if until is not None and time.monotonic() >= until:
                return False
        return True

    def close(self, drain: float = DRAIN_SECONDS) -> None:
        """Take no new calls, wait for the calls in flight, inform the clients, and stop."""
        with self._closing:
            if self._closed.is_set():
                return
            self._api.draining = True
            if self._stop_lines is not None:
                self._stop_lines()
            until = time.monotonic() + drain
            while self._watcher.pending() and time.monotonic() < until:
                time.sleep(0.02)
            self._wait_for_readers(min(until, time.monotonic() + LAST_UPDATE_SECONDS))
            self._uvicorn.should_exit = True
            self._thread.join(10.0)
            self._sock.close()
            self._watcher.end()
            for client in self._api.clients.all():
                self._api.close(client)
            self._api.calls.work.shutdown(wait=False)
            if threading.current_thread() is threading.main_thread() and self._before is not None:
                signal.signal(signal.SIGTERM, self._before)
            self._closed.set()

    def _wait_for_readers(self, until: float) -> None:
        """Wait until the clients know what became of their calls."""
        while any(client.unread() for client in self._api.clients.all()) and time.monotonic() < until:
            time.sleep(0.02)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM: drain, then go on as without this server."""
        if self._closing.locked():  # in the middle of `close`, perhaps of this very thread
            return
        before = self._before
        self.close()
        if callable(before):
            before(number, frame)
        elif before is not signal.SIG_IGN:
            raise SystemExit(_TERMINATED)

    @property
    def handler_before(self) -> Any:
        """The handler of SIGTERM in place of which this server has its own; None for one that Python did not set."""
        return self._before

    def leave_to_parent(self) -> None:
        """In a forked process: the server is closed here, and goes on in the parent."""
        self._closing, self._closed = threading.Lock(), Flag()  # another thread may have held them
        self._closed.set()
        self._sock.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        reaper = asyncio.ensure_future(self._reap())
        try:
            await self._uvicorn.serve(sockets=[self._sock])
        finally:
            reaper.cancel()

    async def _reap(self) -> None:
        """Release what clients held whose lease has ended."""
        while True:
            await asyncio.sleep(min(5.0, self._api.clients.lease / 10))
            for client in self._api.clients.gone():
                _log.warning("the lease of a client has ended: its %d components are released", len(client.components))
                self._api.clients.forget(client)
                asyncio.get_running_loop().run_in_executor(self._api.calls.work, self._api.close, client)


_servers: weakref.WeakSet[HttpServer] = weakref.WeakSet()
_forking = threading.local()


def _hold_sigterm() -> None:
    """Before a fork: a SIGTERM for the forked process waits until it has left the servers; Python would forget it."""
    if _servers:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_sigterm() -> None:
    mask = vars(_forking).pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _leave_to_parent() -> None:
    """In a forked process, such as a worker of a pool: SIGTERM ends it at once, and it does not hold the port."""
    for server in list(_servers):
        server.leave_to_parent()
    handler = signal.getsignal(signal.SIGTERM)
    while inspect.ismethod(handler) and isinstance(handler.__self__, HttpServer):
        handler = handler.__self__.handler_before
        signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)
    _release_sigterm()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_leave_to_parent)
