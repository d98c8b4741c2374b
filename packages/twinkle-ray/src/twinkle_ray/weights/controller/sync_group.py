"""The controller's view of a sync's process group: its store and its current session."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from twinkle_ray.weights.controller.steps import Watched, run_step
from twinkle_ray.weights.rendezvous.session import Phase, Session, SessionStore, own_address
from twinkle_ray.weights.rendezvous.store import StoreAddress, StoreServer
from twinkle_ray.weights.worker import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_ray.weights.controller.rank_calls import RankCalls
    from twinkle_ray.weights.messages import RankReport, Side
    from twinkle_ray.weights.planning.sync_plan import SyncPlan


class SyncGroup:
    """Opens a session where the last one does not fit, and ends it.

    Args:
        calls: To the ranks.
        timeout: Seconds after which waiting for a peer ends.
        silence: A process without a sign of life for as many seconds counts as stopped.
    """

    def __init__(self, calls: RankCalls, timeout: float, silence: float) -> None:
        self._calls, self._timeout, self._silence = calls, timeout, silence
        self._generation = 0
        self._at: StoreAddress | None = None
        self._close_store: Callable[[], object] | None = None
        self._current: tuple[Session, SessionStore] | None = None

    def fits(self, sync_plan: SyncPlan, everyone: Sequence[RankReport]) -> bool:
        """Whether every process is in the current session, and the session is what the plan needs."""
        if self._current is None:
            return False
        session = self._current[0]
        same = (session.size, session.kind, session.links) == (
            len(sync_plan.processes),
            sync_plan.kind,
            sync_plan.links,
        )
        return same and all(report.generation == session.generation for report in everyone)

    def open(self, sync_plan: SyncPlan, everyone: Sequence[RankReport], deadline: float) -> Session:
        """Open a new session, for every process to join.

        Args:
            sync_plan: The plan that needs it.
            everyone: Reports of all ranks.
            deadline: On the monotonic clock.
        """
        if self._at is None:
            self._at = self._serve(everyone, deadline)
        if self._current is not None:
            self._current[1].close()
        self._generation += 1
        session = Session(
            generation=self._generation,
            at=self._at,
            size=len(sync_plan.processes),
            kind=sync_plan.kind,
            links=sync_plan.links,
            timeout=self._timeout,
        )
        self._current = (session, SessionStore(session))
        return session

    def watched(
        self, sync_plan: SyncPlan, phase: Phase, sides: Sequence[Side], *, once_begun: bool = False
    ) -> Watched | None:
        """The processes of some sides, to watch them during a step; None without a session."""
        if self._current is None:
            return None
        processes = sync_plan.processes_of(sides)
        return Watched(self._current[1], phase, self._silence, processes, sync_plan.who, once_begun)

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

    def _serve(self, everyone: Sequence[RankReport], deadline: float) -> StoreAddress:
        """Open the store here; where every process runs the driver's program, on the source's first rank for all."""
        own_host = endpoint.host_identity()
        host = "127.0.0.1" if all(report.host == own_host for report in everyone) else own_address()
        if self._calls.both_sides["source"].polled:
            server = StoreServer(host)
            self._close_store = weakref.finalize(self, server.close)
            return server.address
        call = self._calls.call("source", endpoint.serve, self._calls.same("source", host))
        found: StoreAddress = run_step("serve", self._calls.both_sides, {"source": call}, deadline)["source"][0]
        return found
