"""Data ranks whose workers were lost or do not answer: they take no work until they are back, with current weights."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from twinkle_remote.sessions.weight_sources import WorkersOf
from twinkle_remote.streams.ranks.restarts import LostRank, Restarts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.errors import TwinkleError
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.sessions.runtime import Runtime
    from twinkle_remote.streams.schedule.scheduler import Scheduler
    from twinkle_remote.streams.stages import RemoteStage

_log = logging.getLogger("twinkle.remote")


class LostRanks:
    """The data ranks that take no work.

    Args:
        stages: Each stage that runs on workers, with its pool.
        runtime: The session.
    """

    _schedule: Scheduler

    def __init__(self, stages: Sequence[tuple[int, RemoteStage]], runtime: Runtime) -> None:
        self._stages = stages
        self._runtime = runtime
        self._restarts = Restarts(runtime)
        self._lost: dict[tuple[int, int], LostRank] = {}
        self._drained: set[tuple[int, int]] = set()
        self._late: list[tuple[int, int, PendingCall]] = []
        self._patience: float | None = None
        self._none_since: dict[int, float] = {}  # by pool: when its last data rank stopped to take rows
        self._reported: set[int] = set()
        for _, stage in stages:
            self._restarts.record(WorkersOf(stage.component, stage.component.ranks))

    def serve(self, schedule: Scheduler, wake: Callable[[], None], patience: float | None = None) -> None:
        """Serve a schedule from now on.

        Args:
            schedule: Gets the ranks that are lost, and those that are back.
            wake: Called in another thread when there is something to take in.
            patience: Seconds after which a stage without a worker that takes rows is reported; None for never.
        """
        self._patience = patience
        self._schedule, self._restarts.wake = schedule, wake
        for pool, rank in {*self._lost, *self._drained, *(entry[:2] for entry in self._late)}:
            schedule.rank_lost(pool, rank)

    def belongs_to(self, runtime: Runtime) -> bool:
        """Whether its workers are of a session that goes on."""
        return self._runtime is runtime

    def is_another(self, stage: RemoteStage, rank: int) -> bool:
        """Whether a worker of a data rank was started again since the stream knows it: its weights may be old."""
        return self._restarts.were_replaced(stage.workers(rank))

    def lose(self, pool: int, stage: RemoteStage, rank: int, error: TwinkleError | None) -> None:
        """A worker of a data rank ended, or another one has its place."""
        self._schedule.rank_lost(pool, rank)
        if (pool, rank) not in self._lost and (pool, rank) not in self._drained:
            why = "it was started again" if error is None else _first_line(error)
            _log.warning("a worker of %s is lost; others make its rows again: %s", stage.name, why)
            self._lost[pool, rank] = LostRank(pool, stage, rank, self._stages_of(pool))
            self._restarts.leave_out(self._lost[pool, rank])

    def join(self, pool: int, rank: int) -> None:
        """A data rank takes work as soon as it has current weights."""
        stages = self._stages_of(pool)
        self._lost[pool, rank] = fresh = LostRank(pool, stages[0], rank, stages, fresh=True)
        fresh.due = 0.0
        self._restarts.record(stages[0].workers(rank))
        self._restarts.leave_out(fresh)

    def give_weights(self, component: Component, function: Callable[..., object]) -> None:
        """Have a component's weights go to that of another function too, until the stream is closed."""
        self._restarts.give_weights(component, function)

    def others_work(self, pool: int, ranks: Sequence[int]) -> bool:
        """Whether other data ranks of the pool take work; False where one that joined has no weights yet.

        Raises:
            ValueError: No other works, and none is about to.
        """
        works = self._schedule.pools[pool]
        if any(works.is_usable(rank) for rank in range(works.count) if rank not in ranks):
            return True
        others = [lost for (of_pool, rank), lost in self._lost.items() if of_pool == pool and rank not in ranks]
        if not any(lost.fresh and not lost.tried and (pool, lost.rank) not in self._drained for lost in others):
            stage = self._stages_of(pool)[0]
            group = stage.components[ranks[0]].group
            raise ValueError(f"{stage.name} on group {group!r} is the last one that works: add another")
        return False

    def drain(self, pool: int, rank: int) -> None:
        """A data rank takes no more work, and is not brought back."""
        self._schedule.rank_lost(pool, rank)
        self._drained.add((pool, rank))
        if (pool, rank) not in self._lost:
            stages = self._stages_of(pool)
            self._restarts.leave_out(LostRank(pool, stages[0], rank, stages))

    def is_held_up(self, pool: int, rank: int) -> bool:
        """Whether a data rank is still at a call that is late: what it was given after that has not begun."""
        return any(entry[:2] == (pool, rank) and not entry[2].done() for entry in self._late)

    def late(self, pool: int, rank: int, call: PendingCall) -> None:
        """A data rank did not answer a call in time; it is used again when it has."""
        self._schedule.rank_lost(pool, rank)
        self._late.append((pool, rank, call))

    def look(self) -> None:
        """Try to bring back those ranks whose time has come, and take in what became of the others.

        Raises:
            TwinkleError: All data ranks of a stage are lost, and none comes back.
        """
        for lost, error in self._restarts.over():
            if error is not None:
                _log.log(
                    logging.WARNING if lost.tried == 1 else logging.DEBUG,
                    "a worker of %s is not back: %s",
                    lost.stage.name,
                    _first_line(error),
                )
                self._check_some_are_left(lost, error)
            else:
                del self._lost[lost.pool, lost.rank]
                if lost.fresh:
                    _log.info("a worker of %s has joined, and takes rows", lost.stage.name)
                else:
                    _log.warning("a worker of %s was restarted, and takes rows again", lost.stage.name)
                self._back(lost.pool, lost.rank)
        now = time.monotonic()
        for lost in self._lost.values():
            if lost.is_due(now) and (lost.pool, lost.rank) not in self._drained:
                self._restarts.begin(lost, self._donor(lost.pool))
        for entry in [entry for entry in self._late if entry[2].done()]:
            self._late.remove(entry)
            self._back(*entry[:2])
        self._report_none(now)

    def _report_none(self, now: float) -> None:
        """Report once a stage whose rows nobody takes, because all its workers are lost or late."""
        for pool, stage in self._stages:
            if self._schedule.pools[pool].usable:
                self._none_since.pop(pool, None)
                self._reported.discard(pool)
                continue
            since = self._none_since.setdefault(pool, now)
            if self._patience is None or pool in self._reported or now - since <= self._patience:
                continue
            self._reported.add(pool)
            late = [str(entry[2].lateness(entry[2].spec.timeout)) for entry in self._late if entry[0] == pool]
            _log.warning(
                "no worker of %s takes rows: %d data ranks are lost, %d are at a call past its deadline\n%s",
                stage.name,
                sum(of_pool == pool for of_pool, _ in self._lost),
                len(late),
                "\n".join(late[:1]),
            )

    def close(self) -> None:
        """Bring nothing back any more."""
        for pool, rank in {*self._lost, *self._drained}:
            stages = self._stages_of(pool)
            self._restarts.take_back(LostRank(pool, stages[0], rank, stages))
        self._restarts.detach()

    def _back(self, pool: int, rank: int) -> None:
        if (pool, rank) not in {*self._lost, *self._drained} and all(entry[:2] != (pool, rank) for entry in self._late):
            self._schedule.rank_back(pool, rank)

    def _donor(self, pool: int) -> int | None:
        """The data rank that has the least work, of those that work."""
        ranks = self._schedule.pools[pool]
        return min((rank for rank in range(ranks.count) if ranks.is_usable(rank)), key=ranks.busy, default=None)

    def _stages_of(self, pool: int) -> Sequence[RemoteStage]:
        return [stage for of_pool, stage in self._stages if of_pool == pool]

    def _check_some_are_left(self, lost: LostRank, error: Exception) -> None:
        pool = [other for other in self._lost.values() if other.pool == lost.pool]
        if len(pool) == lost.stage.data_ranks and all(map(self._restarts.gives_up, pool)):
            error.add_note(f"  all workers of {lost.stage.name} are lost, and the stream cannot continue")
            raise error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
