"""Data ranks whose workers were lost or do not answer: asked now and then whether they are back."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_remote.call.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.streams.schedule.scheduler import Scheduler
    from twinkle_remote.streams.stages import RemoteStage

_log = logging.getLogger("twinkle.remote")
_FIRST_SECONDS = 0.2
_MOST_SECONDS = 10.0


@dataclass(slots=True)
class _LostRank:
    pool: int
    stage: RemoteStage
    rank: int
    delay: float = _FIRST_SECONDS
    ask_at: float = 0.0
    asked: int = 0

    def wait(self) -> None:
        """Ask again later."""
        self.ask_at = time.monotonic() + self.delay
        self.delay = min(_MOST_SECONDS, self.delay * 2)


class LostRanks:
    """The data ranks that take no work.

    Args:
        schedule: Is told of ranks that are lost, and of those that are back.
    """

    def __init__(self, schedule: Scheduler) -> None:
        self._schedule = schedule
        self._lost: dict[tuple[int, int], _LostRank] = {}
        self._questions: dict[Reply, tuple[_LostRank, PendingCall]] = {}
        self._late: list[tuple[int, int, PendingCall]] = []

    def lose(self, pool: int, stage: RemoteStage, rank: int, error: TwinkleError) -> None:
        """A worker of a data rank ended."""
        self._schedule.rank_lost(pool, rank)
        if (pool, rank) not in self._lost:
            _log.warning("a worker of %s is lost; others make its rows again: %s", stage.name, _first_line(error))
            self._lost[pool, rank] = _LostRank(pool, stage, rank)
            self._lost[pool, rank].wait()

    def late(self, pool: int, rank: int, call: PendingCall) -> None:
        """A data rank did not answer a call in time; it is used again when it has."""
        self._schedule.rank_lost(pool, rank)
        self._late.append((pool, rank, call))

    def replies(self) -> Iterable[Reply]:
        """The replies of questions that are not answered."""
        return self._questions

    def ask(self) -> None:
        """Ask those ranks whose time has come."""
        now = time.monotonic()
        asked = [id(lost) for lost, _ in self._questions.values()]
        for lost in self._lost.values():
            if lost.ask_at <= now and id(lost) not in asked:
                call = lost.stage.ask(lost.rank)
                self._questions |= dict.fromkeys(call.replies(), (lost, call))
        for entry in [entry for entry in self._late if entry[2].done()]:
            self._late.remove(entry)
            self._back(*entry[:2])

    def answered(self, reply: Reply) -> bool:
        """Take in the reply of a question; False if it is none.

        Raises:
            TwinkleError: All data ranks of a stage are lost, and none comes back.
        """
        if reply not in self._questions:
            return False
        lost, call = self._questions[reply]
        if not (call.done() or call.failed()):
            return True
        for other in call.replies():
            self._questions.pop(other, None)
        try:
            call.wait(0.0)
        except TwinkleError as error:
            lost.asked += 1
            lost.wait()
            self._check_some_are_left(lost, error)
        else:
            del self._lost[lost.pool, lost.rank]
            _log.warning("a worker of %s is back, and takes rows again", lost.stage.name)
            self._back(lost.pool, lost.rank)
        return True

    def _back(self, pool: int, rank: int) -> None:
        if (pool, rank) not in self._lost and all(entry[:2] != (pool, rank) for entry in self._late):
            self._schedule.rank_back(pool, rank)

    def _check_some_are_left(self, lost: _LostRank, error: TwinkleError) -> None:
        pool = [other for other in self._lost.values() if other.pool == lost.pool]
        if len(pool) == lost.stage.data_ranks and all(other.asked > 1 for other in pool):
            error.add_note(f"  all workers of {lost.stage.name} are lost, and the stream cannot go on")
            raise error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
