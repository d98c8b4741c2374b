"""WeightSync: a model's parameters from one component's layout into another's."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from twinkle_ray.weights import endpoint
from twinkle_ray.weights.blueprint import Blueprint, draw
from twinkle_ray.weights.crew import Crew, crew_of
from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.manifest import Rename, Select, Terms
from twinkle_ray.weights.plan import DEFAULT_BUCKET_BYTES, Plan, check_bucket_bytes
from twinkle_ray.weights.program import Order, Outcome, Place, Report, Side
from twinkle_ray.weights.rendezvous import Board, Phase, Session, own_address
from twinkle_ray.weights.routes import Transport, check_transport
from twinkle_ray.weights.shard import Sheet, digest
from twinkle_ray.weights.steps import Ask, Watched, run_step, settle_for
from twinkle_ray.weights.store import StoreAddress, StoreServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

SIDES: tuple[Side, Side] = ("source", "target")


class WeightSync:
    """Moves weights from `source` to `target`, each rank sending and receiving its own blocks only.

    Both are components with a method `weights()` that returns, on each worker, a mapping from name to tensor, DTensor
    or `Shard`. A call moves them: it plans from both sides' shards (once), sends worker to worker, writes the target's
    tensors in place when everything has arrived, and calls the target's `on_weights(version)` where it has that. On any
    failure the target keeps the weights that it had, and the next call works.

    Args:
        source: Whose weights are read.
        target: Whose weights are written.
        bucket_bytes: Size at which blocks are packed together, and cut; at least 1 MiB.
        timeout: Seconds for the whole of one sync.
        rename: From a source name to the target's; None leaves the tensor out.
        select: Which target names take part: a predicate or patterns such as "*.lora_*"; the others stay as they are.
        convert: Convert where the dtypes of the sides differ, which is an error otherwise.
        checksum: Compare a CRC-32 of every bucket at both ends before anything is written.
        keep_old: Keep the old values until every rank has written the new ones, so that a rank that dies at that very
            moment leaves the others as they were. Without it such a death leaves them with the new version, and a sync
            is faster by a copy.
        transport: "auto" (by reference within a process, shared memory or CUDA IPC within a host, NCCL or Gloo between
            hosts), or one of "gloo", "nccl", "shared", "cuda_ipc", "object_store" for every pair of processes.
        silence: Seconds without a sign of life after which a worker counts as stopped.

    Raises:
        ValueError: For an option out of range.
    """

    def __init__(
        self,
        source: object,
        target: object,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        timeout: float = 600.0,
        rename: Rename | None = None,
        select: Select | None = None,
        convert: bool = False,
        checksum: bool = False,
        keep_old: bool = True,
        transport: Transport = "auto",
        silence: float = 10.0,
    ) -> None:
        check_transport(transport)
        for field, seconds in (("timeout", timeout), ("silence", silence)):
            if not seconds > 0:
                raise ValueError(f"{field} must be above 0 seconds, got {seconds}")
        check_bucket_bytes(bucket_bytes)
        self._crews: dict[Side, Crew] = {"source": crew_of(source), "target": crew_of(target)}
        self._bucket_bytes, self._timeout, self._silence = bucket_bytes, timeout, silence
        self._terms = Terms(rename, select, convert)
        self._checksum, self._keep_old = checksum, keep_old
        self._transport: Transport = transport
        self._id = uuid4().hex
        self._version = self._attempt = self._epoch = 0
        self._sheets: dict[tuple[Side, int], tuple[str, Sheet]] = {}
        self._drawn: tuple[str, Blueprint] | None = None
        self._at: StoreAddress | None = None
        self._close_store: Callable[[], object] | None = None
        self._group: tuple[Session, Board] | None = None
        self._open: SyncHandle | None = None

    def __call__(self) -> int:
        """Sync, and return the new version: 1 after the first sync that worked, then 2, ...

        Raises:
            ManifestError: If the sides do not describe the same weights; nothing has moved.
            WeightSyncError: If it failed; the target has the weights that it had.
        """
        return self._begin(detached=False).result()

    def start(self) -> SyncHandle:
        """Begin to sync, and return once the source's buckets are packed.

        The source may compute, and change its weights, while buckets travel; the target's weights change within the
        handle's `result()`, and not before.

        Raises:
            WeightSyncError: If it failed so far, or the sync that was started before has not been finished.
        """
        self._open = self._begin(detached=True)
        return self._open

    @property
    def version(self) -> int:
        """Version of the target's weights: the number of syncs that worked."""
        return self._version

    @property
    def plan(self) -> Plan | None:
        """The plan of the latest sync; None before the first."""
        return None if self._drawn is None else self._drawn[1].plan

    def close(self) -> None:
        """Have every worker give back what it keeps for this sync; a later call starts afresh.

        Raises:
            WeightSyncError: If a worker is gone.
        """
        asks = {side: self._ask(side, endpoint.close) for side in SIDES}
        try:
            run_step("close", self._crews, asks, time.monotonic() + self._timeout)
        finally:
            self._forget()
            self._at = None
            if self._close_store is not None:
                self._close_store()

    def __enter__(self) -> WeightSync:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def _begin(self, *, detached: bool) -> SyncHandle:
        if self._open is not None:
            raise WeightSyncError("the sync that was started before is not finished: call its result() first")
        deadline = time.monotonic() + self._timeout
        self._attempt += 1
        with _Forgetting(self):
            reports = self._survey(deadline)
            blueprint = self._blueprint(reports)
            self._prepare(blueprint, reports, deadline)
            apart = len(blueprint.processes) > 1
            order = Order(
                version=self._version + 1,
                attempt=self._attempt,
                program=blueprint.digest,
                detached=detached,
                checksum=self._checksum,
                reversible=self._keep_old and apart,
            )
            begun = self._step("begin", SIDES, order, deadline, endpoint.begin)
        return SyncHandle(self, blueprint, order, deadline, begun["source"])

    def _finish(self, blueprint: Blueprint, order: Order, deadline: float, begun: Sequence[Outcome]) -> int:
        with _Forgetting(self):
            if order.detached:
                begun = self._step("finish", SIDES, order, deadline, endpoint.finish)["source"]
            if blueprint.depots or order.checksum:
                handles = {index: handle for outcome in begun for index, handle in outcome.handles.items()}
                wanted = [
                    {
                        bucket.index: handles[bucket.index]
                        for bucket in blueprint.buckets
                        if rank in bucket.targets and bucket.index in handles
                    }
                    for rank in range(self._crews["target"].size)
                ]
                collected = self._step("collect", ("target",), order, deadline, endpoint.collect, wanted)["target"]
                if order.checksum:
                    _compare(begun, collected)
            self._commit(order, deadline)
        self._version = order.version
        with _Forgetting(self):
            placed = f"version {order.version} of the weights is in place"
            self._step("settle", SIDES, order, deadline, endpoint.settle, left_with=placed)
        return order.version

    def _commit(self, order: Order, deadline: float) -> None:
        """Write on every rank of the target, or on none: a rank that has written takes it back when another cannot."""
        try:
            self._step("commit", ("target",), order, deadline, endpoint.commit)
        except WeightSyncError:
            if order.reversible:
                orders = [order] * self._crews["target"].size
                settle_for("undo", self._crews["target"], self._ask("target", endpoint.undo, orders))
            raise

    def _survey(self, deadline: float) -> dict[Side, list[Report]]:
        asks = {
            side: self._ask(side, endpoint.survey, [self._sheets.get((side, r), (None,))[0] for r in range(crew.size)])
            for side, crew in self._crews.items()
        }
        reports: dict[Side, list[Report]] = run_step("survey", self._crews, asks, deadline)
        for side, of_side in reports.items():
            for rank, report in enumerate(of_side):
                if report.sheet is not None:
                    self._sheets[side, rank] = (report.digest, report.sheet)
        return reports

    def _blueprint(self, reports: Mapping[Side, Sequence[Report]]) -> Blueprint:
        """What follows from what both sides hold now; drawn again only when that has changed."""
        key = digest([(side, r.process, r.host, r.device, r.digest) for side in SIDES for r in reports[side]])
        if self._drawn is None or self._drawn[0] != key:
            sheets: dict[Side, list[Sheet]] = {
                side: [self._sheets[side, rank][1] for rank in range(crew.size)] for side, crew in self._crews.items()
            }
            drawn = draw(sheets, reports, self._terms, self._bucket_bytes, self._transport)
            self._drawn = (key, drawn)
        return self._drawn[1]

    def _prepare(self, blueprint: Blueprint, reports: Mapping[Side, Sequence[Report]], deadline: float) -> None:
        """Send new programs to those that lack them, and build a new group where the old one does not fit."""
        everyone = [report for side in SIDES for report in reports[side]]
        joining = None
        if len(blueprint.processes) > 1 and not self._fits(blueprint, everyone):
            joining = self._open_session(blueprint, everyone, deadline)
        stale = [report.prepared != blueprint.digest for report in everyone]
        if joining is None and not any(stale):
            return
        asks: dict[Side, Ask] = {}
        for side in SIDES:
            programs = [
                blueprint.program(side, rank) if report.prepared != blueprint.digest else None
                for rank, report in enumerate(reports[side])
            ]
            asks[side] = self._ask(side, endpoint.prepare, programs, [joining] * len(programs))
        watched = None if joining is None else self._watched(blueprint, Phase(0, "join"), SIDES)
        run_step("prepare", self._crews, asks, deadline, watched)

    def _fits(self, blueprint: Blueprint, everyone: Sequence[Report]) -> bool:
        if self._group is None:
            return False
        session = self._group[0]
        same = (session.size, session.kind, session.links) == (
            len(blueprint.processes),
            blueprint.kind,
            blueprint.links,
        )
        return same and all(report.epoch == session.epoch for report in everyone)

    def _open_session(self, blueprint: Blueprint, everyone: Sequence[Report], deadline: float) -> Session:
        if self._at is None:
            self._at = self._serve(everyone, deadline)
        if self._group is not None:
            self._group[1].close()
        self._epoch += 1
        session = Session(
            epoch=self._epoch,
            at=self._at,
            size=len(blueprint.processes),
            kind=blueprint.kind,
            links=blueprint.links,
            timeout=self._timeout,
        )
        self._group = (session, Board(session))
        return session

    def _serve(self, everyone: Sequence[Report], deadline: float) -> StoreAddress:
        """Open the store: here; where every process runs this same program, on the source's first rank for all."""
        own_host = endpoint.host_identity()
        host = "127.0.0.1" if all(report.host == own_host for report in everyone) else own_address()
        if self._crews["source"].polled:
            server = StoreServer(host)
            self._close_store = weakref.finalize(self, server.close)
            return server.address
        hosts = [host] * self._crews["source"].size
        asks: dict[Side, Ask] = {"source": self._ask("source", endpoint.serve, hosts)}
        found: StoreAddress = run_step("serve", self._crews, asks, deadline)["source"][0]
        return found

    def _step(
        self,
        name: str,
        sides: Sequence[Side],
        order: Order,
        deadline: float,
        function: Callable[..., object],
        *columns: Sequence[object],
        left_with: str = "the target keeps the weights that it had",
    ) -> dict[Side, list[Any]]:
        crew_orders = {side: [order] * self._crews[side].size for side in sides}
        asks = {side: self._ask(side, function, crew_orders[side], *columns) for side in sides}
        assert self._drawn is not None
        watched = self._watched(self._drawn[1], order.phase(name), sides)
        return run_step(name, self._crews, asks, deadline, watched, left_with=left_with)

    def _watched(self, blueprint: Blueprint, phase: Phase, sides: Sequence[Side]) -> Watched | None:
        if self._group is None:
            return None
        return Watched(self._group[1], phase, self._silence, blueprint.processes_of(sides), blueprint.who)

    def _ask(self, side: Side, function: Callable[..., object], *columns: Sequence[object]) -> Ask:
        """A function, and each rank's arguments: its place, then its row of the columns."""
        places = [Place(self._id, side, rank) for rank in range(self._crews[side].size)]
        return function, list(zip(places, *columns, strict=True))

    def _forget(self) -> None:
        """End the epoch, and survey everything anew next time."""
        if self._group is not None:
            self._group[1].abort("the controller ended this epoch")
            self._group[1].close()
        self._group = self._drawn = self._open = None
        self._sheets.clear()


class SyncHandle:
    """A sync under way.

    Args:
        sync: The sync.
        blueprint: What it follows.
        order: What the ranks were told.
        deadline: On the monotonic clock.
        begun: What the source's ranks have done.
    """

    def __init__(
        self, sync: WeightSync, blueprint: Blueprint, order: Order, deadline: float, begun: Sequence[Outcome]
    ) -> None:
        self._sync, self._blueprint, self._order = sync, blueprint, order
        self._deadline, self._begun = deadline, begun
        self._version: int | None = None
        self._error: Exception | None = None

    def result(self) -> int:
        """Wait until everything has arrived, write it into the target's weights, and return the new version.

        Raises:
            WeightSyncError: If it failed; the target has the weights that it had.
        """
        if self._error is not None:
            raise self._error
        if self._version is None:
            self._sync._open = None
            try:
                self._version = self._sync._finish(self._blueprint, self._order, self._deadline, self._begun)
            except Exception as error:
                self._error = error
                raise
        return self._version


class _Forgetting:
    """Ends the epoch when anything goes wrong inside, so that the next sync starts afresh."""

    def __init__(self, sync: WeightSync) -> None:
        self._sync = sync

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._sync._forget()


def _compare(sent: Sequence[Outcome], received: Sequence[Outcome]) -> None:
    at_source = {index: value for outcome in sent for index, value in outcome.checksums.items()}
    for rank, outcome in enumerate(received):
        wrong = [index for index, value in outcome.checksums.items() if at_source.get(index) != value]
        if wrong:
            raise WeightSyncError(
                f"bucket(s) {wrong} reached target rank {rank} with other bytes than it was sent; nothing is written"
            )
