"""The driver's part of a sync: describe both sides, plan, have the source stage a version and the target get it, apply.

Nothing of the target changes before `publish`, which puts `apply` into the queue of each of its ranks. A failure before
that is raised, and the next version is planned anew.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinkle_mesh import launched
from twinkle_ray.weights import worker
from twinkle_ray.weights.check import check_metadata, check_replicas
from twinkle_ray.weights.errors import ManifestError, WeightSyncError, WeightSyncTimeoutError
from twinkle_ray.weights.participants import ComponentRanks, Participants
from twinkle_ray.weights.routes import Compiled, SyncOptions, Version, compile_plan
from twinkle_ray.weights.state import RankAddress, Report, Side, StagedOut, StageOrder
from twinkle_remote.backends.support import active
from twinkle_remote.errors import CallTimeoutError, TwinkleError, WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twinkle_ray.weights.transport.nccl import Meeting
    from twinkle_ray.weights.transport.torchrun import LaunchedGroup
    from twinkle_remote.backends.support import PendingCall, WorkersOf

_log = logging.getLogger("twinkle.ray")
_LEAST_WAITING = 2
_CAUSE_SECONDS = 2.0
_ATTEMPTS = 3  # to stage a version while ranks change


class Driver:
    """Stages and publishes versions, one at a time; its caller calls `forget` after an error.

    Args:
        source: The side that is read.
        target: The side that is written.
        options: For every version.
    """

    def __init__(self, source: Participants, target: Participants, options: SyncOptions) -> None:
        self.both_sides: Mapping[Side, Participants] = {"source": source, "target": target}
        self.compiled: Compiled | None = None
        self._id = uuid.uuid4().hex
        self._options = options
        self._sent: set[tuple[Side, int]] = set()  # ranks that have their part of the plan
        self._checked: str | None = None
        self._applying: list[tuple[int, PendingCall]] = []
        self._latest: Version | None = None
        self._said = False
        self._numbers = itertools.count(1)
        self._server: Any = None
        self._meeting: Meeting | None = None
        self._group: LaunchedGroup | None = None

    @property
    def target(self) -> Participants:
        """The side that is written."""
        return self.both_sides["target"]

    def stage(self, number: int, deadline: float, *, in_flight: bool, most_waiting: int = 0) -> Version:
        """Have the source stage a version, as soon as few versions wait to be applied.

        Args:
            number: Of the version.
            deadline: On the monotonic clock.
            in_flight: The target works for a stream, which goes on without ranks that have died.
            most_waiting: Versions that may wait; two at least.

        Raises:
            ManifestError: The sides do not describe the same weights.
            WeightSyncError: It failed, or an earlier version could not be applied.
        """
        self._settle(deadline, max(_LEAST_WAITING, most_waiting))
        for _ in range(_ATTEMPTS):
            compiled = self.compiled
            if compiled is None or not self._covers(compiled):
                compiled = self._describe(deadline, in_flight=in_flight)
            check = self._options.check
            hashed = check == "always" or (check == "first" and self._checked != compiled.digest)
            orders = {rank: (self._order("source", rank, number, hashed=hashed),) for rank in compiled.ranks["source"]}
            with self._step("stage_out"):
                found = self._start("source", worker.stage_out, orders).wait(deadline)
            staged = [found[rank] for rank in compiled.ranks["source"]]
            if all(isinstance(one, StagedOut) for one in staged):
                return self._staged(number, compiled, staged, hashed=hashed)
            self.forget()
        raise WeightSyncError("weights() of the source returns other shards at each call")

    def _covers(self, compiled: Compiled) -> bool:
        """Whether a plan is for all ranks that take part; a group for messages has no others."""
        now, planned = set(self.target.ranks), set(compiled.ranks["target"])
        return now == planned or (now < planned and compiled.kind == "store")

    def _staged(self, number: int, compiled: Compiled, staged: Sequence[StagedOut], *, hashed: bool) -> Version:
        if hashed:
            check_replicas(compiled.plan, [one.hashes for one in staged], self.both_sides["source"].name)
        senders = {transfer.source for transfer in compiled.plan.transfers}
        if not self._said and senders and all(staged[rank].unchanged for rank in senders):
            self._said = True
            _log.warning(
                "version %d of %s has the values of the version before, bit for bit: if there was a step between them, "
                "weights() of %s does not return what it trains, or the step changed nothing",
                number,
                self.target.name,
                self.both_sides["source"].name,
            )
        handles = {index: handle for one in staged for index, handle in one.handles.items()}
        hashes = {move: value for one in staged for move, value in one.hashes.items()} if hashed else None
        return Version(number, compiled, handles, hashes)

    def arrive(self, version: Version, deadline: float, *, in_flight: bool) -> bool:
        """Have the target's ranks get a version; returns False if one of them has changed: it is to be staged anew.

        Raises:
            WeightSyncError: It failed on a rank; in flight, all have died and none comes back.
        """
        compiled = version.compiled
        ranks = [rank for rank in compiled.ranks["target"] if rank in set(self.target.ranks)]
        orders = {rank: (self._order("target", rank, version.number, version=version),) for rank in ranks}
        died: set[int] | None = set() if in_flight and compiled.kind == "store" else None
        with self._step("stage_in"):
            if compiled.kind == "launched":
                self._exchange(orders)
            beside = compiled.kind == "store"
            answers = self._start("target", worker.stage_in, orders, beside=beside)
            if compiled.kind == "nccl":  # a process of both sides begins with its target's rank
                own = {rank: (self._order("source", rank, version.number),) for rank in compiled.ranks["source"]}
                self._start("source", worker.stage_in, own).wait(deadline)
            reports = answers.wait(deadline, died)
        if died and self._applying:  # one that could not apply a version has ended for that reason
            self._applying[0][1].ends_within(_CAUSE_SECONDS)
            self._settle(deadline, len(self._applying) + 1)
        if any(isinstance(report, Report) for report in reports.values()):
            self.forget()
            return False
        version.ranks = sorted(reports)
        if not version.ranks and not (in_flight and _restarts()):
            raise WeightSyncError(f"no rank of {self.target.name}, the target of the weight sync, is alive")
        if version.hashes is not None:
            self._checked = compiled.digest
        return True

    def publish(self, version: Version) -> None:
        """Put `apply` into the queue of each rank that has got a version; returns at once."""
        target, ranks = self.target, set(self.target.ranks)
        arguments = {
            rank: (RankAddress(self._id, "target", rank), version.number) for rank in version.ranks if rank in ranks
        }
        call = target.queue(worker.apply, arguments)
        if call is not None:
            self._applying.append((version.number, call))
        self._latest = version if _restarts() else None  # handles that somebody has keep a version in the store

    def check_applied(self) -> None:
        """In this process a call is over at once: find out whether the version was applied.

        Raises:
            WeightSyncError: It was not, because of an error that it holds.
        """
        if self.target.runs_at_once:
            self._settle(time.monotonic(), _LEAST_WAITING)

    def leave_out(self, workers: WorkersOf) -> None:
        """Leave ranks of the target out."""
        assert isinstance(self.target, ComponentRanks)
        self.target.left_out |= frozenset(workers.ranks)

    def take_back(self, workers: WorkersOf) -> None:
        """Let ranks of the target take part; the plan is made anew where it knows them not."""
        assert isinstance(self.target, ComponentRanks)
        self.target.left_out -= frozenset(workers.ranks)

    def restore(self, workers: WorkersOf, deadline: float) -> bool:
        """Have ranks whose workers were started again apply the latest version; returns False where that is not kept.

        Raises:
            WeightSyncError: It failed.
        """
        version, ranks = self._latest, workers.ranks
        if version is None or not set(ranks) <= set(version.compiled.ranks["target"]):
            return False
        compiled = version.compiled
        fresh: set[tuple[Side, int]] = {("target", rank) for rank in ranks}
        ways = {compiled.routes[index] for rank in ranks for index in compiled.transfers_of("target", rank)}
        if compiled.kind != "store" or not ways <= {"store"}:
            return False
        self._sent -= fresh  # their workers have no part of any plan
        orders = {rank: (self._order("target", rank, version.number, version=version),) for rank in ranks}
        self._sent -= fresh  # that was the plan of the latest version, which may not be that of the next one
        with self._step("restore"):
            reports = self._start("target", worker.stage_in, orders, beside=True).wait(deadline)
            if any(isinstance(report, Report) for report in reports.values()):
                return False
            self._start("target", worker.apply, dict.fromkeys(ranks, (version.number,))).wait(deadline)
        return True

    def forget(self) -> None:
        """Plan the next version anew."""
        self.compiled = self._meeting = self._checked = None
        self._sent.clear()

    def close(self, deadline: float) -> None:
        """Have every rank give back what it keeps for this sync, after the versions that wait.

        Raises:
            WeightSyncError: A rank is gone, or could not apply a version.
        """
        self._latest = self._server = None
        with self._step("close"):
            for one in [self._start(side, worker.close, self._all(side)) for side in self.both_sides]:
                one.wait(deadline)
        self.forget()
        self._settle(deadline, 1)

    def _describe(self, deadline: float, *, in_flight: bool) -> Compiled:
        died: set[int] | None = set() if in_flight else None
        with self._step("describe"):
            sending = self._start("source", worker.describe, self._all("source"))
            getting = self._start("target", worker.describe, self._all("target"), beside=True)
            sent, written = sending.wait(deadline), getting.wait(deadline, died)
        if not written:
            raise WeightSyncError(f"no rank of {self.target.name}, the target of the weight sync, is alive")
        reports: dict[Side, dict[int, Report]] = {"source": sent, "target": written}
        names = self.both_sides["source"].name, self.target.name
        self._check_target(written)
        check_metadata(*names, [sent[rank].metadata for rank in sent], [written[rank].metadata for rank in written])
        self.compiled = compile_plan(reports, self._options.match_options, self._options.transport)
        self._sent.clear()
        return self.compiled

    def _check_target(self, reports: Mapping[int, Report]) -> None:
        """Refuse to write weights that the target trains.

        Raises:
            ManifestError: It trains them.
        """
        for rank, report in reports.items():
            if report.trained:
                raise ManifestError(
                    f"{self.target.name}, the target of the weight sync, trains its weights, and a sync would "
                    f"overwrite them: on rank {rank} {report.trained}. Is WeightSync(source, target) called with the "
                    "two exchanged?"
                )

    def _order(
        self, side: Side, rank: int, number: int, *, hashed: bool = False, version: Version | None = None
    ) -> StageOrder:
        compiled = self.compiled if version is None else version.compiled
        assert compiled is not None
        part = None
        if (side, rank) not in self._sent or compiled.kind != "store":
            part = compiled.part(side, rank)
            self._sent.add((side, rank))
        order = StageOrder(number, compiled.digest, part, self._options.timeout, hashed)
        if compiled.kind == "nccl":
            order = replace(order, meeting=self._meet(compiled))
        if version is None:
            return order
        transfers = compiled.transfers_of("target", rank)
        handles = {index: version.handles[index] for index in transfers if index in version.handles}
        hashes = version.hashes
        if hashes is not None:
            hashes = {move: hashes[move] for index in transfers for move in compiled.plan.transfers[index].moves}
        waiting = tuple(number for number, call in self._applying if not call.done())
        return replace(order, handles=handles, hashes=hashes, waiting=waiting)

    def _start(self, side: Side, function: Any, given: Mapping[int, tuple[Any, ...]], *, beside: bool = False) -> Any:
        arguments = {rank: (RankAddress(self._id, side, rank), *more) for rank, more in given.items()}
        return self.both_sides[side].start(function, arguments, beside=beside)

    def _all(self, side: Side) -> dict[int, tuple[()]]:
        """No further arguments, for every rank of a side."""
        return dict.fromkeys(self.both_sides[side].ranks, ())

    def _meet(self, compiled: Compiled) -> Meeting:
        if self._meeting is None:
            from twinkle_ray.weights.transport.nccl import Meeting, serve  # CUDA alone needs it

            if self._server is None:
                self._server = serve()
            _, host, port = self._server
            size = len(compiled.processes)
            self._meeting = Meeting(host, port, next(self._numbers), size, self._options.timeout)
        return self._meeting

    def _exchange(self, orders: Mapping[int, tuple[StageOrder]]) -> None:
        """Send and receive the messages of this process of a launched program."""
        place = launched()
        assert place is not None and place.world_size is not None
        if self._group is None:
            from twinkle_ray.weights.transport.torchrun import LaunchedGroup

            self._group = LaunchedGroup(place.rank, place.world_size, self._options.timeout)
        try:
            worker.exchange(RankAddress(self._id, "target", place.rank), *orders[place.rank], self._group)
        except BaseException:
            self._group = None
            raise

    def _settle(self, deadline: float, most: int) -> None:
        """Wait until fewer versions wait to be applied; those that are over are forgotten.

        Raises:
            WeightSyncError: A rank could not apply one; it has ended.
        """
        while self._applying:
            number, call = self._applying[0]
            if not call.done() and len(self._applying) < most:
                return
            try:
                call.wait(max(0.0, deadline - time.monotonic()))
            except CallTimeoutError as error:
                raise WeightSyncTimeoutError(
                    f"{len(self._applying)} versions of the weights wait to be applied, and the next one waits for "
                    f"version {number}: {error}"
                ) from error
            except WorkerDiedError:
                self._applying.pop(0)  # its next call says so, and a stream brings it back
            except TwinkleError as error:
                self._applying.pop(0)
                text = f"version {number} of the weights was published, and a rank could not apply it"
                raise WeightSyncError(f"{text}: {error}") from error
            else:
                self._applying.pop(0)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """A step before which nothing of the target has changed, and after which nothing has, if it fails."""
        try:
            yield
        except WeightSyncError:
            raise
        except TwinkleError as error:
            kind = WeightSyncTimeoutError if isinstance(error, CallTimeoutError) else WeightSyncError
            raise kind(
                f"the weight sync failed at its step {name!r}, and the target keeps the weights that it had: {error}"
            ) from error


def _restarts() -> bool:
    """Whether workers that have ended are started again in this session."""
    runtime = active()
    return runtime is not None and runtime.backend.can_restart
