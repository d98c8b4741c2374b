"""The progress of a loader: its position, and the run that reads ahead."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

from twinkle_data.cursor import Cursor
from twinkle_data.errors import bad_sample
from twinkle_data.loading.protocol import Position
from twinkle_data.loading.ranks.data_shard import check_mesh, shard_here
from twinkle_data.loading.ranks.launched_ranks import compare_launched
from twinkle_data.loading.ranks.same_on_ranks import facts_of, first_rows, orders_differ
from twinkle_data.order.steps import DataShard
from twinkle_data.reading.retries import too_many_bad
from twinkle_remote import current_place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinkle_data.batch import BatchInfo
    from twinkle_data.loading.protocol import Engine, Pipeline
    from twinkle_data.loading.ranks.steps_on_ranks import StepsOnRanks
    from twinkle_data.reading.delivery import Delivery
    from twinkle_mesh import DeviceMesh
    from twinkle_remote import Place

B = TypeVar("B")


class Run:
    """A pipeline, with the position and the shard that it runs for."""

    __slots__ = ("__weakref__", "pipeline", "position", "shard")

    def __init__(self, position: Position, shard: DataShard, pipeline: Pipeline) -> None:
        self.position = position
        self.shard = shard
        self.pipeline = pipeline


class Progress(Generic[B]):
    """The progress of a loader, shared by all loops over it.

    Args:
        engine: Delivers the batches.
        mesh: Mesh that divides the batches; None without one.
        given: The loader's own mesh; None without one.
        divided: The place that reads decides which rows are its own; otherwise the mesh alone.
        bar: Show a progress bar for each epoch.
        max_bad: Number of bad samples that are accepted; each process that reads counts its own ones too.
        options: Options that have to be alike on all ranks, by name.

    Attributes:
        position: Position of the loader.
        quarantine: Indices of bad samples.
        info: Position and rows of the latest batch; None before the first.
        owed: The last batch of an epoch was delivered, and neither a loop nor `next(loader)` knows of the end.
        moves: Number of steps of loops and of jumps; a step of `next(loader)` is not counted.
        made_order: Digest of an order that the dataset has made while it was read, with its epoch; None without one.
    """

    def __init__(
        self,
        engine: Engine,
        mesh: DeviceMesh | None,
        given: DeviceMesh | None = None,
        *,
        bar: bool,
        max_bad: int,
        divided: bool = True,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.engine = engine
        self.mesh = mesh
        self._given = given
        self._divided = divided
        self._options = options or {}
        self._maker: Place | None = current_place()
        self.bar = bar
        self._max_bad = max_bad
        self.position = Position(Cursor())
        self.quarantine: set[int] = set()
        self.info: BatchInfo | None = None
        self.guard = ThreadGuard()
        self.owed = False
        self.moves = 0
        self.made_order: tuple[int, str] | None = None
        self._compared = False
        self._on_ranks: StepsOnRanks | None = None
        self._kept: Run | None = None
        self._latest: Callable[[], Run | None] = _no_run

    def __getstate__(self) -> dict[str, Any]:
        fresh = {
            "_kept": None,
            "_latest": _no_run,
            "owed": False,
            "_maker": None,
            "_compared": False,
            "_on_ranks": None,
        }
        return {**self.__dict__, **fresh, "position": Position(*self.position.at)}

    def move(self, cursor: Cursor, source: Any = None) -> None:
        """Go to another position."""
        with self.guard:
            # A new object: a run that still has the old one stays consistent.
            self.close()
            self.position = Position(cursor, source)
            self.info = None
            self.owed = False
            self.moves += 1

    def close(self) -> None:
        """End the latest run; a loop that still has it goes on from the position."""
        latest, self._kept = self._latest(), None
        if latest is not None:
            latest.pipeline.close()

    def run(self) -> Run:
        """The run from the position on: the kept one where it fits, else a new one."""
        shard = self.shard()
        self._compare(shard)
        kept = self._kept
        if kept is not None and kept.position is self.position and kept.shard == shard:
            self.engine.check_lengths()
            return kept
        self.close()
        fresh = Run(self.position, shard, self.engine.run(self.position, shard, self.quarantine))
        self._latest = ref(fresh)
        if self.engine.keeps:
            self._kept = fresh
        return fresh

    def _compare(self, shard: DataShard) -> None:
        """Compare the dataset with those of the other processes, once, where they divide its rows."""
        if not self._compared and shard.data_rank is not None and self.mesh is not None:
            facts = facts_of(
                self.engine.identity,
                first_rows(self.engine.plan),
                **self._options,
                position=tuple(self.position.cursor),
            )
            self._on_ranks = compare_launched(facts, self.mesh, self.place())
            self._compared = True

    def _count_bad(self, found: set[int]) -> int:
        """The bad samples of this process, or of all that divide the rows in one process group."""
        return len(found) if self._on_ranks is None else self._on_ranks.bad.count(frozenset(found))

    def place(self) -> Place:
        """The place of the running code, which in a helper thread is that in which the loader was made."""
        return current_place(self._maker)

    def shard(self) -> DataShard:
        """The shard of each batch that the running code takes."""
        if self.engine.whole:
            return DataShard(1 if self.mesh is None else self.mesh.data_world_size)
        place = self.place()
        if self._divided and place is not self._maker:
            check_mesh(self.mesh, self._given, place)
        return shard_here(self.mesh, place)

    def _check_order(self, epoch: int, order: str) -> None:
        """Compare an order that the dataset has made with that of another process, or of the run before."""
        if self.made_order is not None and self.made_order != (epoch, order) and self.made_order[0] == epoch:
            self.close()
            raise orders_differ("two processes that read it, or this run and the one of the loaded state,")
        if self.made_order is None and self._on_ranks is None and self.shard().data_rank is not None:
            warnings.warn(
                "the dataset makes an order of its rows while it is read, and nothing compares it here with those of "
                "other ranks: unless it is drawn from a fixed seed, rows come twice or never. Make it in __init__",
                RuntimeWarning,
                stacklevel=2,
            )
        self.made_order = epoch, order

    def deliver(self, delivery: Delivery) -> B:
        """Count a batch as delivered.

        Raises:
            StopIteration: It has no rows: the stream has ended.
            BadSampleError: More samples than max_bad cannot be read.
            RanksDifferError: Another rank is at another position, or has other rows of a stream.
        """
        info = delivery.info
        if delivery.order_digest:
            self._check_order(info.epoch, delivery.order_digest)
        if self._on_ranks is not None and info.rows:
            self._on_ranks.deliver(info.epoch, info.position, delivery.rows_digest, delivery.order_digest)
        if delivery.carried is not None:
            self.engine.carry(delivery.carried)
        found = self.quarantine.union(delivery.bad)
        if delivery.bad and (bad := self._count_bad(found)) > self._max_bad:
            self.close()
            last = delivery.bad[-1]
            text = too_many_bad(bad, self._max_bad, f"the last was sample {last}, in epoch {info.epoch}")
            raise bad_sample(text, last, None)
        behind = self.engine.plan.normalize(Cursor(info.epoch, info.position + info.rows))
        if delivery.last:  # only of a stream, whose plan has no end
            behind = Cursor(info.epoch + 1)
        if behind.epoch == info.epoch or self.engine.endless:
            self.position.at = behind, delivery.source
        else:
            # The pipeline ends with the epoch; the next one gets a new position.
            self._kept = None
            self.position = Position(behind)
        if not info.rows:
            raise StopIteration
        self.owed = behind.epoch != info.epoch
        self.quarantine = found
        self.info = info
        return delivery.payload  # type: ignore[no-any-return]  # B is what collate returns, or a Batch


def _no_run() -> None:
    return None


class ThreadGuard:
    """Lets one thread at a time move a loader, and raises in a second one; a pickled copy is a new guard."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = ""

    def __reduce__(self) -> tuple[type[ThreadGuard], tuple[()]]:
        return ThreadGuard, ()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"this loader is in use by thread {self._holder!r}: a loader has one position, so two threads at once "
                "would share its batches at random. Give each thread a loader of its own, or take batches in one "
                "thread and hand them on in a queue.Queue"
            )
        self._holder = threading.current_thread().name

    def __exit__(self, *_: object) -> None:
        self._lock.release()
