"""The group that the processes of a sync meet in, as the controller keeps it: its store and its present session."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from twinkle_ray.weights.controller.steps import Watched, run_step
from twinkle_ray.weights.rendezvous.session import Phase, Session, SessionStore, own_address
from twinkle_ray.weights.rendezvous.store import StoreAddress, StoreServer
from twinkle_ray.weights.worker import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_ray.weights.controller.participants import Participants
    from twinkle_ray.weights.messages import RankAddress, RankReport, Side
    from twinkle_ray.weights.planning.sync_plan import SyncPlan


class SyncGroup:
    """Opens a session where the last one does not fit, and ends it.

    Args:
        crews: Both sides.
        timeout: Seconds after which waiting for a peer ends.
        silence: Seconds without a sign of life that are too many.
    """

    def __init__(self, crews: Mapping[Side, Participants], timeout: float, silence: float) -> None:
        self._crews, self._timeout, self._silence = crews, timeout, silence
        self._generation = 0
        self._at: StoreAddress | None = None
        self._close_store: Callable[[], object] | None = None
        self._current: tuple[Session, SessionStore] | None = None

    def fits(self, blueprint: SyncPlan, everyone: Sequence[RankReport]) -> bool:
        """Whether every process is in the current session, and it is what the blueprint needs."""
        if self._current is None:
            return False
        session = self._current[0]
        same = (session.size, session.kind, session.links) == (
            len(blueprint.processes),
            blueprint.kind,
            blueprint.links,
        )
        return same and all(report.generation == session.generation for report in everyone)

    def open(
        self, blueprint: SyncPlan, everyone: Sequence[RankReport], places: Sequence[RankAddress], deadline: float
    ) -> Session:
        """Open a new session, for which every process is to join.

        Args:
            blueprint: What it is for.
            everyone: Reports of all ranks.
            places: Of the source's ranks.
            deadline: On the monotonic clock.
        """
        if self._at is None:
            self._at = self._serve(everyone, places, deadline)
        if self._current is not None:
            self._current[1].close()
        self._generation += 1
        session = Session(
            generation=self._generation,
            at=self._at,
            size=len(blueprint.processes),
            kind=blueprint.kind,
            links=blueprint.links,
            timeout=self._timeout,
        )
        self._current = (session, SessionStore(session))
        return session

    def watched(self, blueprint: SyncPlan, phase: Phase, sides: Sequence[Side]) -> Watched | None:
        """How a step of some sides is watched; None without a session."""
        if self._current is None:
            return None
        return Watched(self._current[1], phase, self._silence, blueprint.processes_of(sides), blueprint.who)

    def end(self) -> None:
        """End the session for everybody."""
        if self._current is not None:
            self._current[1].abort("the controller ended this generation")
            self._current[1].close()
            self._current = None

    def close(self) -> None:
        """End the session and the store."""
        self.end()
        self._at = None
        if self._close_store is not None:
            self._close_store()

    def _serve(self, everyone: Sequence[RankReport], places: Sequence[RankAddress], deadline: float) -> StoreAddress:
        """Open the store: here; where every process runs this same program, on the source's first rank for all."""
        own_host = endpoint.host_identity()
        host = "127.0.0.1" if all(report.host == own_host for report in everyone) else own_address()
        if self._crews["source"].polled:
            server = StoreServer(host)
            self._close_store = weakref.finalize(self, server.close)
            return server.address
        ask = endpoint.serve, [(place, host) for place in places]
        found: StoreAddress = run_step("serve", self._crews, {"source": ask}, deadline)["source"][0]
        return found
