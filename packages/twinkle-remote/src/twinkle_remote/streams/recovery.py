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
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from twinkle_remote.protocol.messages import WorkerInfo
    from twinkle_remote.sessions.session import Runtime
    from twinkle_remote.sessions.weights import WeightSource, WorkersOf
    from twinkle_remote.streams.source import PlacedRows
    from twinkle_remote.streams.stages import RemoteStage

_log = logging.getLogger("twinkle.remote")
_FIRST_SECONDS, _MOST_SECONDS = 0.2, 5.0
_TRIES = 8  # where workers can be started again: they may die on their way back, several times
_ANSWER_SECONDS = 60.0


class DataRank(NamedTuple):
    """A data rank of a pool of workers."""

    pool: int
    rank: int


class Recovery:
    """Brings lost data ranks back; one for a stream, whose engines come and go.

    Args:
        stages: Each stage that runs on workers, with its pool.
        runtime: The session.

    Attributes:
        wake: Called in another thread when there is something for `look`.
    """

    def __init__(self, stages: Iterable[tuple[int, RemoteStage]], runtime: Runtime) -> None:
        self.runtime = runtime
        self.wake: Callable[[], None] = lambda: None
        self._stages: dict[int, list[RemoteStage]] = defaultdict(list)
        self._known: dict[tuple[str, int], WorkerInfo] = {}  # workers that have current weights
        self._tried: dict[DataRank, int] = {}  # those that are lost, and how many attempts have failed
        self._attempts: queue.SimpleQueue[tuple[DataRank, Exception | None]] = queue.SimpleQueue()
        self._closed = threading.Event()
        for pool, stage in stages:
            self._stages[pool].append(stage)
            for rank in range(len(stage.peers)):
                self._known.update(self._infos(stage.workers(rank)))

    def lost(self) -> Sequence[DataRank]:
        """Those that are lost now."""
        return list(self._tried)

    def was_replaced(self, stage: RemoteStage, rank: int) -> bool:
        """Whether a worker of a data rank was started again since it had current weights."""
        return any(self._known[worker] != info for worker, info in self._infos(stage.workers(rank)).items())

    def is_lost(self, rows: PlacedRows, dead: Collection[tuple[str, int]]) -> bool:
        """Whether workers that have died, by group and rank, have the only copy of rows."""
        if rows.holder is None or not any((rows.holder[0], rank) in dead for rank in rows.holder[1]):
            return False
        return not all(map(self.runtime.backend.store.outlives_worker, rows.holder[2]))

    def lose(self, lost: DataRank, *, why: str) -> None:
        """A worker of a data rank has ended, or was started again by somebody else; returns at once."""
        if lost in self._tried:
            return
        self._tried[lost] = 0
        _log.warning("a worker of %s is lost; others make its rows again: %s", self._name(lost), why.partition("\n")[0])
        for source, workers in self._sources(lost):
            source.leave_out(workers)
        threading.Thread(target=self._bring_back, args=(lost,), name="twinkle-stream-restart", daemon=True).start()

    def look(self) -> Sequence[DataRank]:
        """The data ranks that are back since the last look.

        Raises:
            TwinkleError: All data ranks of a stage are lost, and none comes back.
        """
        back = []
        while not self._attempts.empty():
            lost, error = self._attempts.get()
            if error is None:
                del self._tried[lost]
                back.append(lost)
                _log.warning("a worker of %s is back, and takes rows again", self._name(lost))
                continue
            self._tried[lost] += 1
            level = logging.WARNING if self._tried[lost] == 1 else logging.DEBUG
            _log.log(level, "a worker of %s is not back: %s", self._name(lost), str(error).partition("\n")[0])
            others = [tried for one, tried in self._tried.items() if one.pool == lost.pool]
            all_lost = len(others) == len(self._stages[lost.pool][0].peers)
            if all_lost and min(others) >= (_TRIES if self.runtime.backend.can_restart else 2):
                error.add_note(f"  all workers of {self._name(lost)} are lost, and the stream cannot continue")
                raise error
        return back

    def close(self) -> None:
        """Bring nothing back any more, and leave the ranks to the syncs."""
        self._closed.set()
        for lost in self._tried:
            for source, workers in self._sources(lost):
                source.take_back(workers)

    def _name(self, lost: DataRank) -> str:
        return self._stages[lost.pool][0].name

    def _sources(self, lost: DataRank) -> Sequence[tuple[WeightSource, WorkersOf]]:
        """The sources of the weights of a data rank, each with the workers that it gives them to."""
        found = [stage.workers(lost.rank) for stage in self._stages[lost.pool]]
        return [(source, workers) for workers in found for source in self.runtime.weights.of(workers.component)]

    def _infos(self, workers: WorkersOf) -> dict[tuple[str, int], WorkerInfo]:
        """The workers that have these ranks now."""
        name = workers.component.group
        group = self.runtime.backend.group(name)
        return {(name, rank): group.info(rank) for rank in workers.ranks}

    def _bring_back(self, lost: DataRank) -> None:
        """Try until it is back; in a thread of its own."""
        pause, is_back = _FIRST_SECONDS, False
        while not is_back and not self._closed.wait(pause):
            pause = min(_MOST_SECONDS, 2 * pause)
            try:
                self._restart(lost)
            except Exception as error:  # of the backend, a constructor, the sync: the next attempt may do better
                self._attempts.put((lost, error))
            else:
                is_back = True
                self._attempts.put((lost, None))
            self.wake()

    def _restart(self, lost: DataRank) -> None:
        stage, backend = self._stages[lost.pool][0], self.runtime.backend
        workers = stage.workers(lost.rank)
        if backend.can_restart:
            try:
                stage.ask(lost.rank).wait(_ANSWER_SECONDS)
            except Exception:  # it has ended, it is at its constructor, or that has raised
                backend.restart_ranks(workers.component.group, workers.ranks)
        infos = self._infos(workers)  # one that takes its place while weights come has those of its constructor
        stage.ask(lost.rank).wait(_ANSWER_SECONDS)
        for source, own in self._sources(lost):
            source.catch_up(own)
        self._known.update(infos)
