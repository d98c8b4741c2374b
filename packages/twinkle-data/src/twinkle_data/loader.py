"""The data loader: batches of a dataset in an exact order, from any position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, Unpack, overload

from twinkle_data.cursor import Cursor, State, read_state
from twinkle_data.loading.engine import open_engine
from twinkle_data.loading.iteration import EpochIteration, Loop
from twinkle_data.loading.options import LoaderOptions, grouped
from twinkle_data.loading.progress import Progress
from twinkle_data.loading.recipe import Recipe
from twinkle_data.loading.remote import dividing_mesh, open_on_group
from twinkle_data.option_checks import true_or_false, whole_number
from twinkle_data.reading.randomness import seeded_libraries
from twinkle_data.reading.retries import Policy
from twinkle_data.sources.streams import refuse_resume

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from typing_extensions import TypeVar

    from twinkle_data.batch import Batch, BatchInfo
    from twinkle_data.loading.loader_processes.processes import ProcessOptions
    from twinkle_data.loading.options import PackingKeywords, PackingOptions, RowOptions, RowsByIndex
    from twinkle_data.order.packing import Packing
    from twinkle_data.order.steps import StepPlan
    from twinkle_data.order.tails import Tail
    from twinkle_data.reading.retries import OnError
    from twinkle_mesh import DeviceMesh

    B = TypeVar("B", default=Batch[Any])
    T = TypeVar("T")
    Samples: TypeAlias = RowsByIndex[T] | Iterable[T]
    Columns: TypeAlias = Mapping[str, Sequence[Any]]
    Built: TypeAlias = T | Callable[[], T]
else:
    from typing import TypeVar

    B = TypeVar("B")


class DataLoader(Generic[B]):
    """Batches of a dataset in an exact order, resumable at any step and on any number of ranks.

    For a type checker a batch is a `Batch` of the samples (of packs, with packing), or what `collate_fn` returns.

    Args:
        dataset: A list of samples, a dict of columns, an object with `__len__` and `__getitem__`, a
            `Mixture`, `Shards`, an iterable, or a callable that builds one of these in the process that reads.
        batch_size: Samples of a global batch, a multiple of the data world size.
        device_mesh: In a worker of this mesh, a batch is that rank's slice; on the driver it is the global batch.
            Without a mesh, a worker gets its slice by its component's mesh. Without a mesh and a session, each process
            of a launcher, or of torch's process group, gets a slice.
        remote_group: Load on the workers of this group. A batch is then lazy: it stands for the global batch, and
            its rows stay on the workers until they are used. With a mesh each data rank has a loader; without a
            mesh the first worker has one.
        shuffle: Use a new permutation in each epoch; otherwise the dataset's own order.
        seed: Seed of the order and of the samples' randomness, in [0, 2**64 - 1].
        replicate: Each rank reads all rows, whatever its mesh.
        tail: What happens to the last rows of an epoch, if they do not fill a batch: `drop`, `short` (fewer rows
            on each rank) or `pad` (the same number of rows on each rank, with masked fillers).
        num_workers: Loader processes of each rank; 0 reads in the loop itself.
        collate_fn: Turns a `Batch` into what the loop gets; without it the loop gets the `Batch`.
        on_error: The treatment of a sample that cannot be read: `raise`, `skip` (another sample takes its row, and the
            row is masked) or `replace` (another sample takes its row, the same one in every run).
        retries: More attempts after a transient error: OSError, ConnectionError, TimeoutError.
        backoff_s: Seconds before the first retry; doubled for each later one.
        max_bad: Number of bad samples that `skip` and `replace` accept.
        sample_seeds: Seed `random`, numpy and torch before each sample, by (seed, epoch, index); names such as
            `("numpy",)` seed only these, and draws from the others are warned of. False leaves all of them alone.
        fingerprint: Name of the dataset's contents. Without it, the loader uses the dataset's attribute `fingerprint`,
            or a digest of some samples.
        progress: Show a progress bar for each epoch (needs tqdm), on one rank.
        processes: How loader processes read ahead; replaces `num_workers` and the keywords of its fields.
        packing: Batches by tokens; replaces the keywords of its fields. `batch_size` is then the largest number of
            samples in a step, over all packs.
        **options: The fields of `ProcessOptions` and `Packing` as keywords (`LoaderOptions`).
    """

    @overload
    def __init__(
        self: DataLoader[Batch[dict[str, Any]]],
        dataset: Built[Columns],
        *,
        batch_size: SupportsIndex,
        collate_fn: None = None,
        **options: Unpack[RowOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[Batch[T]],
        dataset: Built[Samples[T]],
        *,
        batch_size: SupportsIndex,
        collate_fn: None = None,
        **options: Unpack[RowOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[Batch[Any]],
        dataset: object,
        *,
        batch_size: SupportsIndex,
        collate_fn: None = None,
        **options: Unpack[RowOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        dataset: Built[Columns],
        *,
        batch_size: SupportsIndex,
        collate_fn: Callable[[Batch[dict[str, Any]]], B],
        **options: Unpack[RowOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        dataset: Built[Samples[T]],
        *,
        batch_size: SupportsIndex,
        collate_fn: Callable[[Batch[T]], B],
        **options: Unpack[RowOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        dataset: object,
        *,
        batch_size: SupportsIndex,
        collate_fn: Callable[[Batch[Any]], B],
        **options: Unpack[RowOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[Batch[Batch[T]]],
        dataset: Built[Samples[T]],
        *,
        batch_size: SupportsIndex,
        collate_fn: None = None,
        **options: Unpack[PackingOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[Any],
        dataset: object,
        *,
        batch_size: SupportsIndex,
        collate_fn: Callable[[Batch[Any]], Any] | None = None,
        **options: Unpack[PackingOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[Batch[Batch[T]]],
        dataset: Built[Samples[T]],
        *,
        batch_size: SupportsIndex,
        collate_fn: None = None,
        **options: Unpack[PackingKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[Any],
        dataset: object,
        *,
        batch_size: SupportsIndex,
        collate_fn: Callable[[Batch[Any]], Any] | None = None,
        **options: Unpack[PackingKeywords],
    ) -> None: ...
    def __init__(
        self,
        dataset: object,
        *,
        batch_size: SupportsIndex,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
        shuffle: bool = False,
        seed: SupportsIndex = 0,
        replicate: bool = False,
        tail: Tail = "drop",
        num_workers: int = 0,
        collate_fn: Callable[[Batch[Any]], B] | None = None,
        on_error: OnError = "raise",
        retries: int = 3,
        backoff_s: float = 0.1,
        max_bad: int = 1000,
        sample_seeds: bool | Collection[str] = True,
        fingerprint: str | None = None,
        progress: bool = False,
        processes: ProcessOptions | None = None,
        packing: Packing | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        rows = whole_number("batch_size", batch_size)
        replicate, progress = true_or_false("replicate", replicate), true_or_false("progress", progress)
        given, divided = device_mesh, not replicate and remote_group is None
        device_mesh = dividing_mesh(device_mesh, remote_group, replicate=replicate)
        processes, packing = grouped(whole_number("num_workers", num_workers), processes, packing, options)
        recipe = Recipe(
            batch_size=rows,
            data_world_size=1 if device_mesh is None else device_mesh.data_world_size,
            shuffle=true_or_false("shuffle", shuffle),
            seed=whole_number("seed", seed),
            tail=tail,
            collate=collate_fn,
            policy=Policy(on_error, whole_number("retries", retries), backoff_s, whole_number("max_bad", max_bad)),
            processes=processes,
            sample_seeds=seeded_libraries(sample_seeds),
            fingerprint=fingerprint,
            packing=packing,
        )
        self.batch_size = rows
        self.device_mesh = device_mesh
        engine = (
            open_engine(dataset, recipe)
            if remote_group is None
            else open_on_group(dataset, recipe, remote_group, device_mesh)
        )
        self._progress: Progress[B] = Progress(
            engine,
            device_mesh,
            given,
            bar=progress,
            max_bad=recipe.policy.max_bad,
            divided=divided,
            options={"batch_size": rows, "tail": tail},
        )
        self._next: EpochIteration[B] | None = None

    @property
    def info(self) -> BatchInfo | None:
        """Epoch, position and rows of the latest batch; None before the first."""
        return self._progress.info

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._progress.position.cursor.epoch

    @property
    def position(self) -> int:
        """Samples delivered in the current epoch, over all ranks."""
        return self._progress.position.cursor.position

    @property
    def plan(self) -> StepPlan:
        """The steps of each epoch, and the indices that each data rank reads in them.

        Raises:
            TypeError: The dataset is a stream, which has no indices.
        """
        self._check_indices("plan")
        return self._progress.engine.plan

    @property
    def batch_sampler(self) -> BatchIndices:
        """The same batches as lists of indices; iterating over them does not move the loader: call `set_epoch`.

        Raises:
            TypeError: The dataset is a stream, which has no indices.
        """
        self._check_indices("batch_sampler")
        return BatchIndices(self)

    def __len__(self) -> int:
        """The steps that are left in this epoch, the same on every rank."""
        return self._progress.engine.plan.steps_left(self._progress.position.cursor)

    def __iter__(self) -> Iterator[B]:
        """Iterate over the rest of this epoch; after a `break`, a new loop goes on where the old one stopped."""
        self._progress.owed = False
        return Loop(self._progress)

    def __next__(self) -> B:
        """The next batch, also in the middle of a loop; StopIteration once at the end of each epoch."""
        progress = self._progress
        if self._next is None or self._next.at != progress.position.cursor or self._next.is_over:
            ended, progress.owed = progress.owed, False
            over, self._next = self._next, None
            if ended and over is not None and over.is_over:
                return over.step()
            if ended:
                raise StopIteration
            self._next = EpochIteration(progress)
        try:
            return self._next.step()
        except BaseException:
            self._next = None
            raise

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Go to the start of an epoch; do nothing if the loader is already in that epoch.

        Args:
            epoch: At least 0.
        """
        number = whole_number("epoch", epoch)
        if number < 0:
            raise ValueError(f"epoch={number} must be at least 0")
        if number != self.epoch:
            self._progress.move(Cursor(number))
        if not self.position:
            self._progress.owed = False

    def state_dict(self) -> dict[str, Any]:
        """The position as JSON values; counts the samples that the loop got.

        Raises:
            NotResumableError: The dataset is a stream that cannot resume at this position.
        """
        cursor, source = self._progress.position.at
        if cursor.position and not self._progress.engine.resumable:
            raise refuse_resume("this loader's dataset")
        bad, made = tuple(sorted(self._progress.quarantine)), self._progress.made_order
        order = made[1] if made is not None and made[0] == cursor.epoch and cursor.position else ""
        carried = {} if cursor.position else self._progress.engine.carried()
        return State(self._progress.engine.identity, cursor, bad, source, order, carried).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; batch size, tail, mesh and number of workers may have changed.

        Raises:
            StateMismatchError: The state was saved over another dataset, seed or algorithm.
            NotResumableError: The dataset is a stream that cannot resume at that position.
        """
        saved = read_state(state, self._progress.engine.identity)
        if saved.cursor.position and self._progress.engine.identity.length is None and saved.source is None:
            raise refuse_resume("this loader's dataset")
        self._progress.engine.carry(saved.carried)
        self._progress.quarantine = set(saved.quarantine)
        self._progress.made_order = (saved.cursor.epoch, saved.made_order) if saved.made_order else None
        self._progress.move(self._progress.engine.plan.normalize(saved.cursor), saved.source)
        self._next = None

    def close(self) -> None:
        """End the loader processes; a later loop starts them again."""
        self._next = None
        self._progress.close()

    def _check_indices(self, name: str) -> None:
        if self._progress.engine.identity.length is None:
            raise TypeError(
                f"a loader over a stream has no {name}: its samples have no indices; iterate over the loader, or pass "
                "Shards with lengths="
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_next": None}


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
        for step in loader.plan.steps(Cursor(loader.epoch, loader.position), loader._progress.shard()):
            yield step.indices
