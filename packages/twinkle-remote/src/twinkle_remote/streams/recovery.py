"""Data ranks whose workers were lost: they take no rows until they are back, with current weights.

A lost data rank has a thread of its own that tries to bring it back, with longer and longer pauses: it starts the
workers again where the session may (`restart="group"`), waits for their answer, and has the sources of their weights
give them the version that the others have. Only then does the engine use the data rank again. A worker that somebody
else has started again is known by its identity, and is brought back in the same way. The engine raises when no data
rank of a stage is left and several attempts for each have failed.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_remote.protocol.backend import RestartingBackend
from twinkle_remote.sessions.weights import WorkersOf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.sessions.runtime import Runtime
    from twinkle_remote.streams.stages import RemoteStage

_log = logging.getLogger("twinkle.remote")
_FIRST_SECONDS, _MOST_SECONDS = 0.2, 5.0
_TRIES = 8  # where workers can be started again: they may die on their way back, several times
_ANSWER_SECONDS = 60.0


@dataclass(slots=True)
class LostRank:
    """A lost data rank.

    Attributes:
        pool: Its pool.
        rank: The data rank.
        stages: The stages that run on it.
        tried: Attempts to bring it back that have failed.
    """

    pool: int
    rank: int
    stages: Sequence[RemoteStage]
    tried: int = 0

    def workers(self) -> Iterator[WorkersOf]:
        """Its workers, once for each stage."""
        return (stage.workers(self.rank) for stage in self.stages)


class Recovery:
    """Brings lost data ranks back; one for a stream, whose engines come and go.

    Args:
        stages: Each stage that runs on workers, with its pool.
        runtime: The session.

    Attributes:
        wake: Called in another thread when there is something for `look`.
    """

    def __init__(self, stages: Sequence[tuple[int, RemoteStage]], runtime: Runtime) -> None:
        self.runtime = runtime
        self._stages = stages
        self._known: dict[tuple[str, int], WorkerInfo] = {}  # workers that have current weights
        self._lost: dict[tuple[int, int], LostRank] = {}
        self._over: queue.SimpleQueue[tuple[LostRank, Exception | None]] = queue.SimpleQueue()  # attempts
        self._closed = threading.Event()
        self.wake: Callable[[], None] = _nothing
        for _, stage in stages:
            self._record(WorkersOf(stage.component, stage.component.ranks))

    def lost(self) -> Sequence[tuple[int, int]]:
        """The pool and the data rank of those that are lost now."""
        return list(self._lost)

    def was_replaced(self, stage: RemoteStage, rank: int) -> bool:
        """Whether a worker of a data rank was started again since it had current weights."""
        workers = stage.workers(rank)
        group = self.runtime.backend.group(workers.component.group)
        return any(group.info(one) != self._known[workers.component.group, one] for one in workers.ranks)

    def lose(self, pool: int, rank: int, *, why: str) -> None:
        """A worker of a data rank has ended, or was started again by somebody else; returns at once."""
        if (pool, rank) in self._lost:
            return
        stages = [stage for of_pool, stage in self._stages if of_pool == pool]
        lost = self._lost[pool, rank] = LostRank(pool, rank, stages)
        _log.warning("a worker of %s is lost; others make its rows again: %s", stages[0].name, why.partition("\n")[0])
        for workers in lost.workers():
            for source in self.runtime.weights.of(workers.component):
                source.leave_out(workers)
        threading.Thread(target=self._bring_back, args=(lost,), name="twinkle-stream-restart", daemon=True).start()

    def look(self) -> Sequence[tuple[int, int]]:
        """The data ranks that are back since the last look.

        Raises:
            TwinkleError: All data ranks of a stage are lost, and none comes back.
        """
        back = []
        while not self._over.empty():
            lost, error = self._over.get()
            if error is None:
                del self._lost[lost.pool, lost.rank]
                back.append((lost.pool, lost.rank))
                _log.warning("a worker of %s is back, and takes rows again", lost.stages[0].name)
            else:
                level = logging.WARNING if lost.tried == 1 else logging.DEBUG
                _log.log(level, "a worker of %s is not back: %s", lost.stages[0].name, str(error).partition("\n")[0])
                self._check_some_are_left(lost, error)
        return back

    def close(self) -> None:
        """Bring nothing back any more, and leave the ranks to the syncs."""
        self._closed.set()
        for lost in self._lost.values():
            for workers in lost.workers():
                for source in self.runtime.weights.of(workers.component):
                    source.take_back(workers)

    def _record(self, workers: WorkersOf) -> None:
        self._known.update(self._infos(workers))

    def _infos(self, workers: WorkersOf) -> dict[tuple[str, int], WorkerInfo]:
        """The workers that have these ranks now."""
        name = workers.component.group
        group = self.runtime.backend.group(name)
        return {(name, rank): group.info(rank) for rank in workers.ranks}

    def _can_restart(self) -> bool:
        backend = self.runtime.backend
        return isinstance(backend, RestartingBackend) and backend.can_restart

    def _check_some_are_left(self, lost: LostRank, error: Exception) -> None:
        others = [one for one in self._lost.values() if one.pool == lost.pool]
        tries = _TRIES if self._can_restart() else 2
        if len(others) == len(lost.stages[0].peers) and all(one.tried >= tries for one in others):
            error.add_note(f"  all workers of {lost.stages[0].name} are lost, and the stream cannot continue")
            raise error

    def _bring_back(self, lost: LostRank) -> None:
        """Try until it is back; in a thread of its own."""
        pause, is_back = _FIRST_SECONDS, False
        while not is_back and not self._closed.wait(pause):
            pause = min(_MOST_SECONDS, 2 * pause)
            try:
                self._restart(lost)
            except Exception as error:  # of the backend, a constructor, the sync: the next attempt may do better
                lost.tried += 1
                self._over.put((lost, error))
            else:
                is_back = True
                self._over.put((lost, None))
            self.wake()

    def _restart(self, lost: LostRank) -> None:
        stage, backend = lost.stages[0], self.runtime.backend
        workers = stage.workers(lost.rank)
        if isinstance(backend, RestartingBackend) and backend.can_restart and not self._answers(lost):
            backend.restart_ranks(workers.component.group, workers.ranks)
        infos = self._infos(workers)  # one that takes its place while weights come has those of its constructor
        stage.ask(lost.rank).wait(_ANSWER_SECONDS)
        for one in lost.stages:
            for source in self.runtime.weights.of(one.component):
                source.catch_up(one.workers(lost.rank))
        self._known.update(infos)

    def _answers(self, lost: LostRank) -> bool:
        try:
            lost.stages[0].ask(lost.rank).wait(_ANSWER_SECONDS)
        except Exception:  # it has ended, it is at its constructor, or that has raised
            return False
        return True


def _nothing() -> None:
    """Nobody looks."""
