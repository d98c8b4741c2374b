"""Restarts of the workers of lost data ranks: started again where the session may, then given current weights."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twinkle_remote.errors import CallTimeoutError, WorkerDiedError
from twinkle_remote.protocol.backend import RestartingBackend
from twinkle_remote.protocol.component import component_of
from twinkle_remote.sessions.weight_sources import WorkersOf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.sessions.runtime import Runtime
    from twinkle_remote.sessions.weight_sources import WeightSource
    from twinkle_remote.streams.stages import RemoteStage

_FIRST_SECONDS = 0.2
_MOST_SECONDS = 5.0
_TRIES = 8  # where workers can be started again: they may die on their way back, several times
_ANSWER_SECONDS = 60.0


@dataclass(slots=True)
class LostRank:
    """A lost data rank.

    Attributes:
        pool: Its pool.
        stage: A stage that runs on it.
        rank: The data rank.
        stages: All stages that run on it.
        fresh: It joins: its workers are started again only where they have ended.
        half_started: Its workers were started again, and that failed: some of them may be there, and old ones others.
        tried: Attempts to bring it back that have failed.
        delay: Seconds between the last attempt and the next.
        due: When the next one begins, in monotonic seconds; None while one is under way.
        given: The workers that the latest attempt gives weights, by group and rank.
    """

    pool: int
    stage: RemoteStage
    rank: int
    stages: Sequence[RemoteStage]
    fresh: bool = False
    half_started: bool = False
    tried: int = 0
    delay: float = _FIRST_SECONDS
    due: float | None = field(default_factory=lambda: time.monotonic() + _FIRST_SECONDS)
    given: dict[tuple[str, int], WorkerInfo] = field(default_factory=dict)

    @property
    def components(self) -> Sequence[Component]:
        """Its component of each of these stages."""
        return self.of_donor(self.rank)

    def of_donor(self, data_rank: int) -> Sequence[Component]:
        """The components of these stages on another data rank."""
        return [stage.components[data_rank] for stage in self.stages]

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of its workers."""
        return self.stage.peers[self.rank]

    def is_due(self, now: float) -> bool:
        """Whether the next attempt begins."""
        return self.due is not None and self.due <= now


class Restarts:
    """The attempts to bring data ranks back, each in a thread of its own.

    Args:
        runtime: The session.

    Attributes:
        wake: Called when one is over.
    """

    wake: Callable[[], None]

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[tuple[str, int], WorkerInfo] = {}
        self._attached: list[tuple[WeightSource, Component]] = []
        self._over: queue.SimpleQueue[tuple[LostRank, Exception | None]] = queue.SimpleQueue()

    def record(self, workers: WorkersOf) -> None:
        """Record that these workers have current weights."""
        self._known.update(self._workers(workers))
        self._runtime.backend.group(workers.component.group).open_concurrent(workers.ranks)

    def _workers(self, workers: WorkersOf) -> dict[tuple[str, int], WorkerInfo]:
        """The workers that have these ranks now."""
        name = workers.component.group
        group = self._runtime.backend.group(name)
        return {(name, rank): group.info(rank) for rank in workers.ranks}

    def give_weights(self, component: Component, function: Callable[..., object]) -> None:
        """Have what gives a component its weights give them to the component of a function too."""
        handle = getattr(function, "__self__", None)
        other = component_of(handle)
        for source in self._runtime.weights.of(component):
            source.attach(handle)
            if other is not None:
                self._attached.append((source, other))

    def detach(self) -> None:
        """Give those that were attached nothing any more."""
        while self._attached:
            source, component = self._attached.pop()
            source.detach(component)

    def were_replaced(self, workers: WorkersOf) -> bool:
        """Whether other workers have these ranks than those that are known."""
        return any(info != self._known[key] for key, info in self._workers(workers).items())

    def leave_out(self, lost: LostRank) -> None:
        """Have no sync reach the ranks until they are brought up."""
        for component in lost.components:
            for source in self._runtime.weights.of(component):
                source.leave_out(WorkersOf(component, lost.ranks))

    def take_back(self, lost: LostRank) -> None:
        """Leave the ranks to the syncs."""
        for component in lost.components:
            for source in self._runtime.weights.of(component):
                source.take_back(WorkersOf(component, lost.ranks))

    def begin(self, lost: LostRank, donor: int | None) -> None:
        """Begin an attempt; returns at once.

        Args:
            lost: The data rank.
            donor: A data rank that has current weights; None if there is none.
        """
        lost.due = None
        threading.Thread(target=self._try, args=(lost, donor), name="twinkle-stream-restart", daemon=True).start()

    def over(self) -> Iterator[tuple[LostRank, Exception | None]]:
        """The attempts that are over, each once, with the error of those that have failed."""
        while not self._over.empty():
            lost, error = self._over.get()
            if error is None:
                self._known.update(lost.given)
                self._runtime.backend.group(lost.components[0].group).open_concurrent(lost.ranks)
            else:
                lost.tried += 1
                lost.due = time.monotonic() + lost.delay
                lost.delay = min(_MOST_SECONDS, lost.delay * 2)
            yield lost, error

    def _try(self, lost: LostRank, donor: int | None) -> None:
        try:
            self._restart(lost, donor)
        except Exception as error:  # of the backend, of a constructor, of the sync: the next attempt may do better
            self._over.put((lost, error))
        else:
            self._over.put((lost, None))
        self.wake()

    def gives_up(self, lost: LostRank) -> bool:
        """Whether so many attempts have failed that the next one is not likely to do better."""
        backend = self._runtime.backend
        return lost.tried >= (_TRIES if isinstance(backend, RestartingBackend) and backend.can_restart else 2)

    def _have_ended(self, lost: LostRank) -> bool:
        """Whether workers of a data rank are to be started again: also those that came back and have ended since."""
        if lost.half_started or not (lost.fresh or self.were_replaced(lost.stage.workers(lost.rank))):
            return True
        try:
            lost.stage.ask(lost.rank).wait(_ANSWER_SECONDS)
        except (WorkerDiedError, CallTimeoutError):
            return True
        return False

    def _restart(self, lost: LostRank, donor: int | None) -> None:
        backend, workers = self._runtime.backend, lost.stage.workers(lost.rank)
        if isinstance(backend, RestartingBackend) and backend.can_restart and self._have_ended(lost):
            lost.half_started = True
            backend.restart_ranks(workers.component.group, workers.ranks)
            lost.half_started = False
        lost.given = self._workers(workers)  # one that takes its place while weights come has those of its constructor
        lost.stage.ask(lost.rank).wait(_ANSWER_SECONDS)
        self._check_donor(lost, donor)
        for number, part in enumerate(lost.components):
            donors = None if donor is None else WorkersOf(lost.of_donor(donor)[number], lost.stage.peers[donor])
            for source in self._runtime.weights.of(part):
                source.catch_up(WorkersOf(part, lost.ranks), donors)
        self._check_donor(lost, donor)

    def _check_donor(self, lost: LostRank, donor: int | None) -> None:
        """Refuse weights of a worker that was started again since it was chosen: they are those of its constructor."""
        if donor is not None and self.were_replaced(lost.stage.workers(donor)):
            self.leave_out(lost)
            raise WorkerDiedError(f"the worker of {lost.stage.name} that gives its weights was started again")
