"""The data loader: a cursor in an order of samples, and a loop that moves it by what it delivers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, SupportsIndex

from twinkle_data.cursor import Cursor, State, read_state
from twinkle_data.loading.data_shard import mesh_here, part_here
from twinkle_data.loading.engine import Place, Recipe, open_engine
from twinkle_data.loading.processes import ProcessOptions
from twinkle_data.loading.progress import Bar, shows_here
from twinkle_data.loading.remote import mesh_of_group, open_on_group
from twinkle_data.reading.retries import Policy
from twinkle_data.sources.shards import refuse_resume
from twinkle_data.whole_number import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.context import BaseContext

    from typing_extensions import TypeVar

    from twinkle_data.batch import Batch, BatchInfo
    from twinkle_data.loading.engine import Engine, Pipeline
    from twinkle_data.order.steps import Part, Plan
    from twinkle_data.order.tails import Tail
    from twinkle_data.reading.reader import Delivery
    from twinkle_data.reading.retries import OnError
    from twinkle_mesh import DeviceMesh

    B = TypeVar("B", default=Batch[Any])
else:
    from typing import TypeVar

    B = TypeVar("B")


class DataLoader(Generic[B]):
    """Batches of a dataset in an exact order, resumable at any step and on any number of ranks.

    Args:
        dataset: A list of samples, a dict of columns, an object with `__len__` and `__getitem__`, a
            `Mixture`, `Shards`, an iterable, or a callable that builds one of these where the loader lives.
        batch_size: Samples of a global batch, a multiple of the data world size.
        device_mesh: In a worker of this mesh, batches are that rank's slice; without one, or on the driver,
            they are global. Under a launcher, without one and outside of a session, each process has its slice.
        remote_group: Load on this group's workers: batches are lazy, stand for the global batch, and stay there until
            they are used. With a mesh there is one loader for each data rank; without one, one on the first worker.
        shuffle: Another permutation in each epoch, rather than the dataset's own order.
        seed: Seed of the order and of the samples' randomness, in [0, 2**64 - 1].
        tail: What becomes of an epoch's last rows: `drop`, `short` (fewer rows on each rank), `pad` (equally
            many, with masked fillers).
        num_workers: Loader processes of each rank; 0 reads in the loop itself.
        collate_fn: Makes what the loop sees of a `Batch`; without one the loop sees the `Batch`.
        on_error: A sample that cannot be read: `raise`, `skip` (its row shows another and is masked) or
            `replace` (its row shows another, the same in every run).
        retries: Further attempts after a transient error: OSError, ConnectionError, TimeoutError.
        backoff_s: Seconds before the first of them, doubled for each further one.
        max_bad: Bad samples that `skip` and `replace` tolerate.
        prefetch_factor: Batches that each loader process reads ahead.
        pin_memory: Copy tensors into page-locked memory.
        persistent_workers: Keep loader processes, and read ahead, over the end of an epoch.
        multiprocessing_context: How loader processes start: "fork", "spawn", "forkserver" or a context.
        worker_init_fn: Called in each loader process with its number.
        timeout_s: Seconds that one batch may take in loader processes before they are started anew, and that the
            workers of a remote group may take for one, or for building the dataset, before that is an error.
        restarts: Times that this is done without a batch in between.
        sample_seeds: Make what `random`, numpy and torch draw while a sample is read a function of (seed,
            epoch, index).
        lengths: Tokens of each sample, for packing: a batch is then a list of packs, equally many on each
            data rank, each of them a `Batch` of at most `max_tokens` tokens, and `batch_size` bounds the
            samples of all of them.
        max_tokens: Tokens that a pack holds.
        micro_batches: Packs of each data rank in every step.
        progress: Show a bar (with tqdm) over what is left of each epoch, on one rank.
        fingerprint: Says what the dataset is; without it, a digest of some samples or of the dataset's own.
    """

    def __init__(
        self,
        dataset: object,
        *,
        batch_size: SupportsIndex,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
        shuffle: bool = False,
        seed: SupportsIndex = 0,
        tail: Tail = "drop",
        num_workers: int = 0,
        collate_fn: Callable[[Batch[Any]], B] | None = None,
        on_error: OnError = "raise",
        retries: int = 3,
        backoff_s: float = 0.1,
        max_bad: int = 1000,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        multiprocessing_context: str | BaseContext | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout_s: float = 300.0,
        restarts: int = 3,
        sample_seeds: bool = True,
        fingerprint: str | None = None,
        lengths: Sequence[int] | None = None,
        max_tokens: int | None = None,
        micro_batches: int = 1,
        progress: bool = False,
    ) -> None:
        rows = whole_number("batch_size", batch_size)
        device_mesh = mesh_here(device_mesh) if remote_group is None else mesh_of_group(remote_group, device_mesh)
        processes = ProcessOptions(
            whole_number("num_workers", num_workers),
            whole_number("prefetch_factor", prefetch_factor),
            pin_memory,
            persistent_workers and num_workers > 0,
            multiprocessing_context,
            worker_init_fn,
            timeout_s,
            whole_number("restarts", restarts),
        )
        recipe = Recipe(
            batch_size=rows,
            data_world_size=1 if device_mesh is None else device_mesh.data_world_size,
            shuffle=shuffle,
            seed=whole_number("seed", seed),
            tail=tail,
            collate=collate_fn,
            policy=Policy(on_error, whole_number("retries", retries), backoff_s, whole_number("max_bad", max_bad)),
            processes=processes,
            sample_seeds=sample_seeds,
            fingerprint=fingerprint,
            lengths=lengths,
            max_tokens=None if max_tokens is None else whole_number("max_tokens", max_tokens),
            micro_batches=whole_number("micro_batches", micro_batches),
        )
        self.batch_size = rows
        self.device_mesh = device_mesh
        self.info: BatchInfo | None = None
        self._progress = progress
        self._engine: Engine = (
            open_engine(dataset, recipe)
            if remote_group is None
            else open_on_group(dataset, recipe, remote_group, device_mesh)
        )
        self._place = Place(Cursor())
        self._quarantine: set[int] = set()
        self._own: _Pass[B] | None = None
        self._kept: _Stretch | None = None
        self._guard = _Guard()
        self._turns = 0  # steps of loops and jumps; those of next(loader) leave loops as they are

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._place.cursor.epoch

    @property
    def position(self) -> int:
        """Samples delivered in the current epoch, over all ranks."""
        return self._place.cursor.position

    @property
    def plan(self) -> Plan:
        """Where steps begin and end, and which indices each part of one has."""
        return self._engine.plan

    @property
    def batch_sampler(self) -> BatchIndices:
        """The same batches as lists of indices; going over them moves nothing."""
        return BatchIndices(self)

    def __len__(self) -> int:
        """The steps that are left in this epoch, the same on every rank."""
        return self._engine.plan.steps_left(self._place.cursor)

    def __iter__(self) -> Iterator[B]:
        """Go through what is left of this epoch; a loop that was left early goes on where it stopped."""
        return _Loop(self)

    def __next__(self) -> B:
        """The next batch, also in the middle of a loop; StopIteration once at the end of each epoch."""
        if self._own is None or self._own.at != self._place.cursor:
            self._own = _Pass(self)
        try:
            return self._own.step(self)
        except BaseException:
            self._own = None
            raise

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Go to the start of an epoch; does nothing when the loader is in that epoch already.

        Args:
            epoch: At least 0.
        """
        number = whole_number("epoch", epoch)
        if number < 0:
            raise ValueError(f"epoch={number} must be at least 0")
        if number != self.epoch:
            self._move(Cursor(number))

    def state_dict(self) -> dict[str, Any]:
        """What brings a loader back to this position: small, JSON-able, counting what was delivered.

        Raises:
            NotResumableError: The dataset is a stream that no state brings back to this position.
        """
        cursor, source = self._place.cursor, self._place.source
        if cursor.position and not self._engine.resumable:
            raise refuse_resume("this loader's dataset")
        return State(self._engine.identity, cursor, tuple(sorted(self._quarantine)), source).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position, whatever the batch size, tail, mesh and number of workers are now.

        Raises:
            StateMismatchError: The state was saved over another dataset, seed or algorithm.
            NotResumableError: The dataset is a stream that no state brings back to that position.
        """
        saved = read_state(state, self._engine.identity)
        if saved.cursor.position and self._engine.identity.length is None and saved.source is None:
            raise refuse_resume("this loader's dataset")
        self._quarantine = set(saved.quarantine)
        self._move(self._engine.plan.settle(saved.cursor), saved.source)

    def close(self) -> None:
        """End loader processes that are kept in this process; a later loop starts them again."""
        self._own = None
        if self._kept is not None:
            self._kept.pipeline.close()
            self._kept = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None, "_kept": None, "_place": Place(*self._at())}

    def _at(self) -> tuple[Cursor, Any]:
        return self._place.cursor, self._place.source

    def _move(self, cursor: Cursor, source: Any = None) -> None:
        with self._guard:
            # A new place rather than a moved one: what still runs from the old one stays consistent.
            self.close()
            self._place = Place(cursor, source)
            self.info = None
            self._turns += 1

    def _stretch(self) -> _Stretch:
        part = part_here(self.device_mesh)
        kept, self._kept = self._kept, None
        if kept is not None:
            if kept.place is self._place and kept.part == part:
                self._kept = kept
                return kept
            kept.pipeline.close()
        fresh = _Stretch(self._place, part, self._engine.run(self._place, part, self._quarantine))
        if self._engine.keeps:
            self._kept = fresh
        return fresh

    def _deliver(self, delivery: Delivery) -> B:
        info = delivery.info
        behind = self._engine.plan.settle(Cursor(info.epoch, info.position + info.rows))
        if delivery.last:  # of a stream: only what was read tells that it is the end
            behind = Cursor(info.epoch + 1)
        if behind.epoch == info.epoch or self._engine.endless:
            self._place.cursor, self._place.source = behind, delivery.source
        else:
            # The pipeline ends with the epoch, and its place with it.
            self._kept = None
            self._place = Place(behind)
        if not info.rows:
            raise StopIteration
        if delivery.bad:
            self._quarantine.update(delivery.bad)
        self.info = info
        return delivery.payload  # type: ignore[no-any-return]  # B is what collate returns, or a Batch


class BatchIndices:
    """Batches as lists of indices, for `torch.utils.data.DataLoader(dataset, batch_sampler=...)`.

    Args:
        loader: The loader whose batches these are.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        loader = self._loader
        for step in loader._engine.plan.steps(loader._place.cursor, part_here(loader.device_mesh)):
            yield step.indices


class _Stretch:
    """A pipeline, and where it runs from."""

    __slots__ = ("part", "pipeline", "place")

    def __init__(self, place: Place, part: Part, pipeline: Pipeline) -> None:
        self.place = place
        self.part = part
        self.pipeline = pipeline


class _Guard:
    """Lets one thread at a time move a loader, and refuses a second one; travels as a fresh one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = ""

    def __reduce__(self) -> tuple[type[_Guard], tuple[()]]:
        return _Guard, ()

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


class _Pass(Generic[B]):
    """What is left of an epoch; it does not hold its loader, so that processes end when nobody has either any more."""

    def __init__(self, loader: DataLoader[B]) -> None:
        self.at = loader._place.cursor
        self._epoch = self.at.epoch
        self._stretch: _Stretch | None = None
        self._bar: Bar | None = None

    def step(self, loader: DataLoader[B]) -> B:
        """Deliver the next batch of a loader."""
        with loader._guard:
            if self.at.epoch != self._epoch:
                self._stretch = None
                if self._bar is not None:
                    self._bar.close()
                raise StopIteration
            if self._stretch is None:
                self._stretch = loader._stretch()
                if loader._progress and shows_here(loader.device_mesh):
                    self._bar = Bar(self.at, loader._engine.plan.samples_left(self.at))
            delivery = next(self._stretch.pipeline, None)
            assert delivery is not None, f"the pipeline ended before the epoch did, at {self.at}"
            try:
                return loader._deliver(delivery)
            finally:
                self.at = loader._place.cursor
                if self._bar is not None:
                    self._bar.delivered(delivery.info.rows)

    def follow(self, loader: DataLoader[B]) -> None:
        """Go on where `next(loader)` has gone meanwhile."""
        if loader._place.cursor != self.at:
            self.at, self._stretch = loader._place.cursor, None


class _Loop(Generic[B]):
    """The iterator of a `for` loop."""

    def __init__(self, loader: DataLoader[B]) -> None:
        self._loader = loader
        self._pass = _Pass(loader)
        self._turns = loader._turns

    def __iter__(self) -> _Loop[B]:
        return self

    def __next__(self) -> B:
        loader = self._loader
        if loader._turns != self._turns:
            raise RuntimeError(
                f"this loop stands at {self._pass.at} and its loader at {loader._place.cursor}: another loop, "
                "set_epoch or load_state_dict moved it; start a new loop"
            )
        self._pass.follow(loader)
        before = self._pass.at
        try:
            return self._pass.step(loader)
        finally:
            if self._pass.at != before:
                self._turns = loader._turns = loader._turns + 1
