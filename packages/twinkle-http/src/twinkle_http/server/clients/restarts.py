"""Restarts of ended workers, when a client asks for them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from twinkle_http.wire.envelopes import CallUpdate
from twinkle_remote.backends.serving import presence, start
from twinkle_remote.errors import BackendError, TwinkleError, WorkerDiedError
from twinkle_remote.protocol import RestartingBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_http.server.clients.clients import Clients
    from twinkle_remote.backends.serving import ServedSession
    from twinkle_remote.protocol import Component

_ANSWER_SECONDS = 5.0


class ServedRestarts:
    """Restarts workers of the session.

    Args:
        session: The session.
        clients: They are informed which workers were restarted.
    """

    def __init__(self, session: ServedSession, clients: Clients) -> None:
        self._session = session
        self._clients = clients
        self._lock = threading.Lock()

    @property
    def is_possible(self) -> bool:
        """Whether the session can restart workers."""
        backend = self._session.backend
        return isinstance(backend, RestartingBackend) and backend.can_restart

    def restart(self, component: Component, ranks: Sequence[int]) -> None:
        """Restart the workers of the ranks whose workers have ended; the others continue.

        Raises:
            BackendError: The session does not do that.
            TwinkleError: The workers did not start, or a constructor raised.
        """
        backend = self._session.backend
        if not (isinstance(backend, RestartingBackend) and backend.can_restart):
            raise BackendError('the server restarts no workers: its session needs initialize(..., restart="group")')
        with self._lock:  # another client may have asked for the same
            lost = [rank for rank in ranks if self._has_ended(component, rank)]
            if not lost:
                return
            told = self._clients.all()
            for client in told:
                client.restarted.begin(component.group, lost)
            try:
                backend.restart_ranks(component.group, lost)
            except BaseException:
                for client in told:
                    client.restarted.give_up(component.group, lost)
                raise
            for client in {*told, *self._clients.all()}:
                client.publish(CallUpdate(restarted=[component.group, *lost]))

    def _has_ended(self, component: Component, rank: int) -> bool:
        call = start(presence(component, (rank,), "the server's look for workers that ended"), prefetched=True)
        try:
            call.wait(_ANSWER_SECONDS)
        except WorkerDiedError:
            return True
        except TwinkleError:  # it is busy, or lives without that component
            return False
        return False
