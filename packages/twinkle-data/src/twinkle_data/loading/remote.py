"""Loading on a group of workers: one loader for each data rank, driven by one loop on the driver.

A step is a remote call with a position. Its result stays on the workers that read it, once for all ranks that see the
same samples, and goes from there to the workers that use it. The driver has the position, and counts only the steps
that its loop got.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_data.batch import BatchInfo
from twinkle_data.cursor import Cursor
from twinkle_data.loading.engine import open_engine, steps_from
from twinkle_data.loading.own_copy import own_copies
from twinkle_data.loading.protocol import Position
from twinkle_data.loading.ranks.data_shard import check_mesh_type, mesh_here
from twinkle_data.loading.ranks.same_on_ranks import check_same, facts_of, first_rows, orders_differ, rows_differ
from twinkle_data.order.steps import DataShard
from twinkle_data.reading.delivery import Delivery
from twinkle_remote import current_place, current_worker, is_handle, remote_class, remote_function, submit
from twinkle_remote.backends.support import active, are_ranks_threads, call_of
from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from twinkle_data.cursor import Identity
    from twinkle_data.loading.protocol import Engine, Pipeline
    from twinkle_data.loading.recipe import Recipe
    from twinkle_data.order.steps import Step, StepPlan
    from twinkle_mesh import DeviceMesh
    from twinkle_remote import Lazy


class StepReport(NamedTuple):
    """A data rank's report to the driver about its rows of a step."""

    info: BatchInfo
    bad: tuple[int, ...]
    source: Any
    last: bool
    rows_digest: str = ""
    order_digest: str = ""
    carried: dict[str, Any] | None = None


class DatasetInfo(NamedTuple):
    """A worker's report to the driver about the dataset."""

    identity: Identity
    plan: StepPlan
    resumable: bool
    first_rows: list[list[int]]
    rank: int


def _same_answer(results: list[DatasetInfo | None], mesh: DeviceMesh | None) -> DatasetInfo:
    """The answer of all ranks that read.

    Raises:
        RanksDifferError: They differ.
    """
    first, *others = [result for result in results if result is not None]
    for other in others:
        here, there = (facts_of(each.identity, each.first_rows) for each in (first, other))
        check_same(here, there, (first.rank, other.rank))
    return first


def _answers(results: list[Any], mesh: DeviceMesh | None) -> list[Any]:
    """The answers of the ranks that read, in data order."""
    return results if mesh is None else [results[rank] for rank in mesh.collect_ranks]


class GroupLoader:
    """The worker's side: reads the steps that the driver asks for, and reads ahead while they are consecutive.

    Args:
        dataset: The dataset, or a callable that builds it on the worker.
        recipe: Options of the loader.
    """

    def __init__(self, dataset: object, recipe: Recipe) -> None:
        self._dataset = dataset
        self._recipe = recipe
        self._engine: Engine | None = None
        self._pipeline: Pipeline | None = None
        self._position = Position(Cursor())
        self._report: StepReport | None = None

    @remote_function(dispatch="all", collect=_same_answer, lazy_collect=False)
    def open(self) -> DatasetInfo | None:
        """Open the dataset on the ranks that read; of the ranks that see the same samples, one does.

        Raises:
            RanksDifferError: Their datasets differ.
            TypeError: Ranks that share a process cannot have copies of their own.
        """
        context = current_worker()
        if context.mesh is not None and context.rank not in context.mesh.collect_ranks:
            return None
        if are_ranks_threads() and context.world_size > 1:
            self._dataset, collate = own_copies(self._dataset, self._recipe.collate)
            self._recipe = replace(self._recipe, collate=collate)
        engine = self._engine = open_engine(self._dataset, self._recipe)
        return DatasetInfo(engine.identity, engine.plan, engine.resumable, first_rows(engine.plan), context.rank or 0)

    @remote_function(dispatch="all", collect="flatten")
    def read(
        self, cursor: Cursor, source: Any, quarantine: tuple[int, ...], carried: dict[str, Any] | None = None
    ) -> Any:
        """This rank's rows of the step at a position.

        Args:
            cursor: The position.
            source: State of a stream at that position.
            quarantine: Indices of bad samples.
            carried: What the passes before the epoch have changed on a stream; None leaves it as it is.
        """
        if self._engine is None:
            return None
        report = self._report
        if report is not None and report.last and report.info.epoch == cursor.epoch and cursor > report.info[:2]:
            self._report = report._replace(info=BatchInfo(*cursor, [], [], 0))
            return None
        self._report = None
        if self._pipeline is None or cursor != self._position.cursor:
            self.stop()
            if carried is not None:
                self._engine.carry(carried)
            self._position = Position(cursor, source)
            self._pipeline = self._engine.run(self._position, self._shard(), quarantine, whole=True)
        delivery = next(self._pipeline)
        info = delivery.info
        if delivery.carried is not None:
            self._engine.carry(delivery.carried)
        # Loader processes restart from here, should they die.
        behind = self._engine.plan.normalize(Cursor(info.epoch, info.position + info.rows))
        self._position.at = behind, delivery.source
        seen = delivery.rows_digest, delivery.order_digest
        carried = self._engine.carried() if delivery.last else None
        self._report = StepReport(info, delivery.bad, delivery.source, delivery.last, *seen, carried)
        if delivery.last or (self._position.cursor.epoch != cursor.epoch and not self._engine.endless):
            self.stop()
        return delivery.payload

    @remote_function(dispatch="all", collect=_answers)
    def report(self) -> list[StepReport]:
        """The reports on the last step, one of each rank that reads."""
        return self._report  # type: ignore[return-value]  # a worker returns one report; the collect makes the list

    @remote_function(dispatch="all", sync=True)
    def stop(self) -> None:
        """End the loader processes."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None

    def _shard(self) -> DataShard:
        context = current_worker()
        if context.mesh is None:
            return DataShard()
        return DataShard(context.mesh.data_world_size, context.mesh.data_rank(context.rank))


@remote_class(execute="all")
class RankLoader(GroupLoader):
    """A loader on each data rank of a mesh."""


@remote_class(execute="first")
class FirstRankLoader(GroupLoader):
    """A loader of global batches on the first worker."""


class GroupEngine:
    """Delivers lazy batches of the loaders on a group.

    Args:
        workers: The handle of those loaders.
        recipe: Options of the loader.
        info: Their report on the dataset.
    """

    keeps = True
    endless = False
    whole = True

    def __init__(self, workers: GroupLoader, recipe: Recipe, info: DatasetInfo) -> None:
        self._workers = workers
        self._recipe = recipe
        self.identity, self.plan, self.resumable = info.identity, info.plan, info.resumable
        self._carried: dict[str, Any] | None = None

    def carried(self) -> dict[str, Any]:
        """Return the changes of the passes so far on the workers' streams."""
        return self._carried or {}

    def carry(self, state: dict[str, Any]) -> None:
        """Note the changes; the workers get them with the first step of an epoch."""
        self._carried = state

    def check_lengths(self) -> None:
        """Do nothing: the workers check theirs."""

    def run(self, position: Position, shard: DataShard, quarantine: Iterable[int], *, whole: bool = False) -> Pipeline:
        """Ask for the steps from a position to the end of its epoch, `prefetch_factor` of them ahead."""
        return RemotePipeline(self._workers, self.plan, position, quarantine, self._recipe, self._carried)


class RemotePipeline:
    """A pipeline that asks the workers for steps ahead of the loop."""

    def __init__(
        self,
        workers: GroupLoader,
        plan: StepPlan,
        position: Position,
        quarantine: Iterable[int],
        recipe: Recipe,
        carried: dict[str, Any] | None,
    ) -> None:
        self._workers = workers
        self._plan = plan
        self._position = position
        self._quarantine = set(quarantine)
        self._recipe = recipe
        self._carried = carried
        self._steps: Iterator[Step] | None = None
        self._asked: deque[tuple[Lazy[Any], Lazy[list[StepReport]]]] = deque()

    def __next__(self) -> Delivery:
        if self._steps is None:
            self._steps = steps_from(self._plan, self._position, DataShard(self._recipe.data_world_size), endless=False)
        try:
            while len(self._asked) <= self._recipe.processes.prefetch_factor:
                step = next(self._steps, None)
                if step is None:
                    break
                at = Cursor(step.epoch, step.position)
                carried = None if step.position else self._carried
                batch = submit(self._workers.read, at, step.source, tuple(self._quarantine), carried)
                report = submit(self._workers.report)
                # A loop may end before it takes this step; then a failure of it does not matter.
                call_of(batch).prefetched = call_of(report).prefetched = True
                self._asked.append((batch, report))
            if not self._asked:
                raise StopIteration
            batch, report = self._asked[0]
            # A step that failed is not counted. wait() does not fetch the rows.
            batch.wait(self._recipe.processes.timeout_s)
            reports = report.result(self._recipe.processes.timeout_s)
        except BaseException:
            self.close()
            raise
        self._asked.popleft()
        for number, own in enumerate(reports):
            if own.rows_digest != reports[0].rows_digest:
                raise rows_differ((0, number), f"of data ranks, in the rows of the stream from {own.info.position} on")
            if own.order_digest and reports[0].order_digest and own.order_digest != reports[0].order_digest:
                raise orders_differ(f"data ranks 0 and {number}")
        bad = tuple(sorted({index for own in reports for index in own.bad}))
        self._quarantine.update(bad)
        first = reports[0]
        info = first.info._replace(
            indices=[index for own in reports for index in own.info.indices],
            valid=[flag for own in reports for flag in own.info.valid],
        )
        made = next((own.order_digest for own in reports if own.order_digest), "")
        return Delivery(info, batch, bad, first.source, first.last, order_digest=made, carried=first.carried)

    def close(self) -> None:
        """Drop the steps that were asked for; the next one is the first that was not delivered."""
        self._steps = None
        self._asked.clear()


def open_on_group(dataset: object, recipe: Recipe, group: str, mesh: DeviceMesh | None) -> Engine:
    """The engine for a group; its loaders are in this process where the group's components are.

    Args:
        dataset: The dataset, or a callable that builds it on the workers.
        recipe: Options of the loader.
        group: Name of the group.
        mesh: Mesh of the group's workers; None puts one loader of global batches on the first worker.

    Raises:
        BackendError: The session is a server's.
    """
    runtime = active()
    if runtime is not None and runtime.served is not None:
        raise BackendError(
            f"DataLoader(remote_group={group!r}): a dataset and its functions cannot be sent over HTTP. Leave "
            "remote_group out, and batches travel from here; or serve a remote class that has the loader, with "
            "__iter__ and __next__, and its batches stay there"
        )
    workers: GroupLoader
    placed: Any = {"remote_group": group}
    if mesh is None:
        workers = FirstRankLoader(dataset, recipe, **placed)
    else:
        placed["device_mesh"] = mesh
        workers = RankLoader(dataset, recipe, **placed)
    if not is_handle(workers):
        return open_engine(dataset, recipe)
    info = submit(workers.open).result(recipe.processes.timeout_s)
    assert info is not None
    return GroupEngine(workers, recipe, info)


def dividing_mesh(given: DeviceMesh | None, group: str | None, *, replicate: bool) -> DeviceMesh | None:
    """The mesh that divides the batches of a loader; None without one.

    Args:
        given: The loader's own.
        group: Its `remote_group`.
        replicate: Each rank reads all rows.

    Raises:
        ValueError: The mesh does not fit the place that makes the loader, or `replicate` is given with a mesh or group.
    """
    check_mesh_type(given)
    if replicate and (given is not None or group is not None):
        raise ValueError("replicate=True reads all rows on each rank: leave device_mesh= and remote_group= out")
    if group is not None:
        return mesh_of_group(group, given)
    return None if replicate else mesh_here(given, current_place())


def mesh_of_group(group: str, mesh: DeviceMesh | None) -> DeviceMesh | None:
    """The mesh of a loader on a group: the given one, or the session's where it fits the group."""
    runtime = active()
    if mesh is not None or runtime is None or runtime.mesh is None or group not in runtime.groups:
        return mesh
    return runtime.mesh if runtime.mesh.world_size == runtime.groups[group].num_workers else None
