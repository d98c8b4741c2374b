"""Other workers in the places of those that have ended, when a client asks for them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from twinkle_remote.call.start import start
from twinkle_remote.errors import BackendError, TwinkleError, WorkerDiedError
from twinkle_remote.http.wire.envelopes import CallNews
from twinkle_remote.protocol.backend import RevivingBackend
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.worker.present import present

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.http.server.clients import Clients
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.sessions.runtime import Runtime

_ANSWER_SECONDS = 5.0


class Revival:
    """Has the session start workers again.

    Args:
        runtime: The session.
        clients: They are told whose workers are others now.
    """

    def __init__(self, runtime: Runtime, clients: Clients) -> None:
        self._runtime = runtime
        self._clients = clients
        self._lock = threading.Lock()

    @property
    def is_possible(self) -> bool:
        """Whether the session starts workers again."""
        backend = self._runtime.backend
        return isinstance(backend, RevivingBackend) and backend.can_revive

    def revive(self, component: Component, ranks: Sequence[int]) -> None:
        """Start other workers in the places of those ranks whose workers have ended; the others go on.

        Raises:
            BackendError: The session does not do that.
            TwinkleError: The workers did not start, or a constructor raised.
        """
        backend = self._runtime.backend
        if not (isinstance(backend, RevivingBackend) and backend.can_revive):
            raise BackendError('the server starts no workers again: its session wants initialize(..., restart="group")')
        with self._lock:  # another client may have asked for the same
            lost = [rank for rank in ranks if self._has_ended(component, rank)]
            if not lost:
                return
            told = self._clients.all()
            for client in told:
                client.renewals.begin(component.group, lost)
            try:
                backend.revive(component.group, lost)
            except BaseException:
                for client in told:
                    client.renewals.give_up(component.group, lost)
                raise
            for client in {*told, *self._clients.all()}:
                client.publish(CallNews(renewed=[component.group, *lost]))

    def _has_ended(self, component: Component, rank: int) -> bool:
        part = replace(component, ranks=(rank,))
        call = start(part, "function", present, component.name, FunctionSpec(dispatch="all"))
        call.prefetched = True
        try:
            call.wait(_ANSWER_SECONDS)
        except WorkerDiedError:
            return True
        except TwinkleError:  # it is busy, or lives without that component
            return False
        return False
