"""The data loader: batches of a dataset in an exact order, from any position, on any number of ranks.

A loop is a generator over the steps of the plan; each batch that it hands out moves the position, and nothing else but
`set_epoch` and `load_state_dict` does.
"""

from __future__ import annotations

from copy import copy
from operator import index
from typing import TYPE_CHECKING, Any, Generic, Literal, SupportsIndex, Unpack, overload

from twinkle_data.order import DatasetOrder
from twinkle_data.plan import Plan, check_batch_size, tokens_of
from twinkle_data.ranks import RankShare, compare_launched, share_here
from twinkle_data.reading import Reader, batch_of
from twinkle_data.remote import open_on_group
from twinkle_data.sampler import SamplerOrder, refuse_own_generator
from twinkle_data.sources import fingerprint_of, is_stream, lengths_of, opened, order_of
from twinkle_data.state import Identity, Position, read_state, write_state
from twinkle_data.stream import StreamReader, state_of, stream_steps
from twinkle_data.workers import Processes, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from _typeshed import SupportsLenAndGetItem
    from typing_extensions import TypeVar

    from twinkle_data.batch import Batch, BatchInfo
    from twinkle_data.order import Order
    from twinkle_data.plan import Step
    from twinkle_data.remote import OnGroup
    from twinkle_mesh import DeviceMesh

    B = TypeVar("B", default=Batch[Any])
    T = TypeVar("T")

    class LoaderOptions(WorkerOptions, total=False):
        """The keywords that have no part in the type of a batch."""

        device_mesh: DeviceMesh | None
        remote_group: str | None
        shuffle: bool
        seed: SupportsIndex
        drop_last: bool
        sampler: object
        sample_seeds: bool
        on_error: Literal["raise", "skip"]
        fingerprint: str | None
        num_workers: int
        prefetch_factor: int | None
        replicate: bool
else:
    from typing import TypeVar

    B = TypeVar("B")


class DataLoader(Generic[B]):
    """Batches of a dataset in an exact order, resumable at any step and on any number of ranks.

    For a type checker a batch is a `Batch` of the samples, or what `collate_fn` returns.

    Args:
        dataset: A list, an array, a dict of columns, an object with `len()` and `[]`, a `Mixture`, an iterable, or a
            callable that builds one of these in the process that reads.
        batch_size: Samples of a global batch, a multiple of the data ranks.
        device_mesh: In a worker of this mesh a batch is that rank's share; on the driver it is the global batch. None
            takes the mesh of the component in a worker, and all processes under a launcher.
        remote_group: Load on the workers of this group. A batch is then lazy: it stands for the global batch, and its
            rows stay on the workers until they are used. Without a mesh the first worker loads.
        shuffle: Use a new permutation in each epoch; otherwise the dataset's own order.
        seed: Seed of the order and of the samples' random numbers, in [0, 2**64 - 1].
        drop_last: Leave out the last samples of an epoch that do not fill a batch. Otherwise the last batch is smaller
            on the driver, and on ranks it has ceil(rows / ranks) rows each, some of them masked.
        sampler: Indices of an epoch, in their order; all ranks draw the same. It replaces `shuffle`.
        collate_fn: Turns a `Batch` into what the loop gets.
        max_tokens: A batch is a batch of packs, one for each data rank, of at most so many tokens each; `batch_size` is
            then the most samples of a step. The dataset shows the tokens of each sample: by an attribute `lengths`, a
            column `length`, or `input_ids`.
        sample_seeds: Make what a sample draws from `random`, numpy and torch a function of (seed, epoch, index). False
            leaves the generators alone.
        on_error: What a sample that cannot be read does: `raise`, or `skip`: another one takes its row, masked.
        fingerprint: Name of the dataset's contents, in place of a digest of it.
        num_workers: Loader processes of each rank; 0 reads in the loop itself. A stream is read by one at most.
        prefetch_factor: Steps that each loader process reads ahead, or those that a remote group does.
        replicate: Every rank reads all rows.
        **options: Options of torch's DataLoader (`WorkerOptions`).

    Raises:
        TypeError: The dataset has no rows by position, or options do not fit it.
        ValueError: A batch does not divide over the ranks, an epoch has no step, or an option is out of range.
    """

    @overload
    def __init__(
        self: DataLoader[Batch[T]],
        dataset: SupportsLenAndGetItem[T] | Callable[[], SupportsLenAndGetItem[T]],
        *,
        batch_size: SupportsIndex,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        dataset: object,
        *,
        batch_size: SupportsIndex,
        collate_fn: Callable[[Any], B] | None = None,
        max_tokens: int | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: SupportsIndex,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
        shuffle: bool = False,
        seed: SupportsIndex = 0,
        drop_last: bool = True,
        sampler: object = None,
        collate_fn: Callable[[Any], Any] | None = None,
        max_tokens: int | None = None,
        sample_seeds: bool = True,
        on_error: Literal["raise", "skip"] = "raise",
        fingerprint: str | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        replicate: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> None:
        self.batch_size, self._seed = index(batch_size), index(seed)
        if not 0 <= self._seed < 1 << 64:
            raise ValueError(f"seed={self._seed} is outside [0, 2**64 - 1]")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={on_error!r} is not 'raise' or 'skip'")
        if replicate and (device_mesh is not None or remote_group is not None):
            raise ValueError("replicate=True reads all rows on each rank: leave device_mesh= and remote_group= out")
        if sampler is not None and shuffle:
            raise ValueError("sampler= gives the order: leave shuffle= out")
        if unknown := sorted(options.keys() - WorkerOptions.__annotations__.keys()):
            known = ", ".join(WorkerOptions.__annotations__)
            raise TypeError(f"DataLoader has no option {unknown[0]!r}; of torch's it takes {known}")
        if on_error == "skip" and max_tokens is not None:
            raise ValueError(f"on_error='skip' with max_tokens={max_tokens}: no other sample fits into a pack for sure")
        self.device_mesh = device_mesh
        self._shuffle, self._drop_last, self._sampler, self._max_tokens = shuffle, drop_last, sampler, max_tokens
        self._collate, self._sample_seeds, self._skip = collate_fn, sample_seeds, on_error == "skip"
        self._name, self._replicate = fingerprint, replicate
        self._workers, self._prefetch, self._options = num_workers, prefetch_factor, options
        self.at, self._moves = Position(), 0
        self.info: BatchInfo | None = None
        self.compares = False  # with other ranks, which are told `first_rows`, what the first step of all ranks read
        self.first_rows = ""
        self._compared = False
        self._share: RankShare | None = None
        self._plan: Plan | None = None
        self._processes: Processes | None = None
        self._group: OnGroup | None = None
        self._order: Order | None = None
        if remote_group is not None:
            self._group = open_on_group(self, dataset, remote_group, prefetch_factor or 2)
        if self._group is None:
            self._open(dataset)
        else:
            self.identity = self._group.identity
            length = self.identity.length
            self._order = None if length is None else DatasetOrder(length, 0, shuffle=False)
        self._prepare()

    def opened(self, dataset: Any) -> DataLoader[B]:
        """A loader with the options of this one, over a dataset that this process opens."""
        loader = copy(self)
        loader._open(dataset)
        loader._prepare()
        return loader

    def _open(self, dataset: Any) -> None:
        """Open the dataset in this process."""
        self._dataset = opened(dataset)
        self._stream = is_stream(self._dataset)
        if self._stream and (self._shuffle or self._sampler is not None or self._max_tokens is not None or self._skip):
            raise ValueError(
                f"shuffle=, sampler=, max_tokens= and on_error='skip' need samples by index, and a "
                f"{type(self._dataset).__name__} is a stream: let it shuffle, pack and skip itself"
            )
        self._start = state_of(self._dataset) if self._stream else None
        self._length = 0 if self._stream else len(self._dataset)
        if self._stream:
            self._order = None
        elif self._sampler is not None:
            self._order = SamplerOrder(self._sampler, self._seed)
        else:
            self._order = order_of(self._dataset, self._seed, shuffle=self._shuffle)
        name = fingerprint_of(self._dataset) if self._name is None else self._name
        order, length = ("stream-v1", None) if self._order is None else (self._order.name, self._order.length)
        self.identity = Identity(order, self._seed, length, name)

    def _prepare(self) -> None:
        """Find out whose rows this process reads, and make the plan and the reader."""
        if self._group is None:
            self._share = share_here(self.device_mesh, replicate=self._replicate)
        else:
            self._share = RankShare(1 if self.device_mesh is None else self.device_mesh.data_world_size)
        world = self._share.world
        check_batch_size(self.batch_size, world if self._max_tokens is None else 1)  # of packs it is the most samples
        if self._order is not None:
            packing = None
            if self._max_tokens is not None:
                own = self._group is None  # on a group the workers know the lengths
                lengths, count = (lengths_of(self._dataset), self._length) if own else ((), 0)
                packing = tokens_of(lengths, count, self._max_tokens), self._max_tokens
            self._plan = Plan(self._order, self.batch_size, world, drop_last=self._drop_last, packing=packing)
            if not self._plan.has_step(0):
                raise ValueError(
                    f"an epoch of {self._order.length} samples has no step at batch_size={self.batch_size} with "
                    f"drop_last={self._drop_last} over {world} data ranks; use a smaller batch, or drop_last=False"
                )
        if self._group is not None:
            return
        usual: Any = {"sample_seeds": self._sample_seeds, "collate": self._collate}
        reader: Reader | StreamReader
        if self._stream:
            usual |= {"batch_size": self.batch_size, "drop_last": self._drop_last}
            reader = StreamReader(self._dataset, self._seed, self._start, self._share, **usual)
        else:
            reader = Reader(self._dataset, self._seed, skip=self._skip, **usual)
        workers = min(self._workers, 1) if self._stream else self._workers
        self._processes = Processes(reader.read, workers, self._prefetch, self._seed, self._options)

    def __getstate__(self) -> dict[str, Any]:
        # Elsewhere it may read another share.
        return {**self.__dict__, "_share": None, "_plan": None, "_processes": None}

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.at.epoch

    @property
    def position(self) -> int:
        """Samples delivered in the current epoch, over all ranks."""
        return self.at.position

    def __len__(self) -> int:
        """The steps that are left in this epoch, the same on every rank; with packing an epoch is counted through.

        Raises:
            TypeError: The dataset is a stream, whose end is known when it is reached.
        """
        if self._order is None:
            raise TypeError("a loader over a stream has no length: its end is known when it is reached")
        if self._share is None:
            self._prepare()
        assert self._plan is not None
        if self._group is not None and self._max_tokens is not None:
            return self._group.left(self.at)
        return self._plan.left(*self.at[:2])

    def __iter__(self) -> Iterator[B]:
        """The rest of this epoch; after a `break` a new loop goes on where the old one stopped."""
        if self._share is None:
            self._prepare()
        if self._group is None:
            self._check_here()
        self._moves += 1
        return self._deliver(self._moves)

    def _check_here(self) -> None:
        """Refuse to read where other rows are due than those that the loader was made for, or other rows are there."""
        here = share_here(self.device_mesh, replicate=self._replicate)
        if here != self._share:
            raise ValueError(
                f"this loader was made where it reads {_said(self._share)}, and here it would read {_said(here)}: make "
                "it in the worker, or after init_process_group; replicate=True reads all rows on each rank"
            )
        if not self._stream and len(self._dataset) != self._length:
            raise ValueError(
                f"the dataset has {len(self._dataset)} rows, and had {self._length} when the loader was made: make a "
                "new loader, whose order is that of the new length"
            )

    def _deliver(self, moves: int) -> Iterator[B]:
        found = self._read() if self._group is None else self._group.run(self.at)
        while True:
            if moves != self._moves:
                raise RuntimeError("another loop, set_epoch or load_state_dict has moved this loader; begin a new loop")
            try:
                self.info, batch, self.at = next(found)
            except StopIteration as end:
                self.at = end.value
                return
            yield batch

    def _read(self) -> Generator[tuple[BatchInfo, Any, Position], None, Position]:
        """The steps from here to the end of the epoch, and the position after each; returns that after the end."""
        assert self._processes is not None and self._share is not None
        steps = stream_steps(self.at, self.batch_size) if self._plan is None else self._planned(self._plan)
        sharded, plain = self._share.rank is not None, self._collate is None
        for read in self._processes.run(steps):
            info, rows, packs, source, compared = read
            if not info.rows:  # the end of a stream
                return Position(info.epoch + 1, 0, source)
            self.first_rows = compared if self._name is None else ""
            if self._share.compared and not self._compared:
                facts = {**self.identity._asdict(), "epoch": info.epoch, "position": info.position}
                compare_launched({**facts, "first rows": self.first_rows}, self._share)
            self._compared = True
            batch = batch_of(rows, info, packs, sharded=sharded) if plain else rows
            yield info, batch, self._normal(Position(info.epoch, info.position + info.rows, source))
        return self.at

    def _planned(self, plan: Plan) -> Iterator[Step]:
        assert self._share is not None
        steps = plan.steps(self.at.epoch, self.at.position, self._share.rank)
        if not self._compared and (self.compares or self._share.compared):
            first = plan.order.block(self.at.epoch, self.at.position, self.at.position + 1)
            yield next(steps)._replace(compared=int(first[0]))
        yield from steps

    def _normal(self, at: Position) -> Position:
        """The end of an epoch is the start of the next one; the end of a stream is not known before it is read."""
        return at if self._plan is None or self._plan.has_step(at.position) else Position(at.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, unless the loader is in it."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch} must be at least 0")
        if epoch != self.at.epoch:
            self.at = Position(epoch)
            self._moves += 1

    def state_dict(self) -> dict[str, Any]:
        """The position, the same on every rank; it counts the samples that the loop got, not those read ahead.

        Raises:
            NotResumableError: `sampler=` has a generator of the program's own, whose state nobody saves.
        """
        refuse_own_generator(self._sampler)
        return write_state(self.identity, self.at)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; the batch size, the mesh and the loader processes may be others than before.

        Raises:
            StateMismatchError: It is no state, or one of another dataset, seed or order.
        """
        if self._share is None:
            self._prepare()
        self.at = self._normal(read_state(state, self.identity))
        self._moves += 1


def _said(share: RankShare | None) -> str:
    world, rank, _ = share or RankShare()
    return "global batches" if rank is None else f"the rows of data rank {rank} of {world}"
