"""The data loader: an order of samples, and a loop that moves a cursor in it by what it delivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from twinkle_data.cursor import Cursor, Identity, State, read_state
from twinkle_data.fingerprint import digest
from twinkle_data.order import Sequential, Shuffled
from twinkle_data.place import part_here
from twinkle_data.plan import BatchPlan
from twinkle_data.reader import Reader
from twinkle_data.samples import Sampling
from twinkle_data.source import open_source
from twinkle_data.tails import TAILS, Tail, check_batch_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from twinkle_data.batch import Batch, BatchInfo
    from twinkle_data.order import Order
    from twinkle_data.plan import Part
    from twinkle_data.reader import Delivery
    from twinkle_mesh import DeviceMesh

B = TypeVar("B")


class DataLoader(Generic[B]):
    """Batches of a dataset in an exact order, resumable at any step and on any number of ranks.

    Args:
        dataset: A list of samples, a dict of columns, an object with `__len__` and `__getitem__`, or a
            callable that builds one of these where the loader lives.
        batch_size: Samples of a global batch, a multiple of the data world size.
        device_mesh: In a worker of this mesh, batches are that rank's slice; without one, or on the driver,
            they are global.
        shuffle: Another permutation in each epoch, rather than the dataset's own order.
        seed: Seed of the order and of the samples' randomness, in [0, 2**64 - 1].
        tail: What becomes of an epoch's last rows: `drop`, `short` (fewer rows on each rank), `pad` (equally
            many, with masked fillers).
        collate_fn: Makes what the loop sees of a `Batch`; without one the loop sees the `Batch`.
        fingerprint: Says what the dataset is; without it, a digest of some samples or of the dataset's own.
    """

    def __init__(
        self,
        dataset: object,
        *,
        batch_size: int,
        device_mesh: DeviceMesh | None = None,
        shuffle: bool = False,
        seed: int = 0,
        tail: Tail = "drop",
        collate_fn: Callable[[Batch[Any]], B] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        if tail not in TAILS:
            raise ValueError(f"tail={tail!r} is not one of {', '.join(map(repr, TAILS))}")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed={seed} is outside [0, 2**64 - 1]")
        check_batch_size(batch_size, 1 if device_mesh is None else device_mesh.data_world_size)
        self.batch_size = batch_size
        self.device_mesh = device_mesh
        self.info: BatchInfo | None = None
        self._source = open_source(dataset)
        length = len(self._source)
        order: Order = Shuffled(length, seed) if shuffle else Sequential(length)
        self._plan = BatchPlan(order, batch_size, tail)
        self._identity = Identity(
            order.algorithm,
            seed,
            length,
            self._source.fingerprint if fingerprint is None else digest(fingerprint),
        )
        self._collate = collate_fn
        self._cursor = Cursor()
        self._quarantine: set[int] = set()
        self._loop: Iterator[B] | None = None

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._cursor.epoch

    @property
    def position(self) -> int:
        """Samples delivered in the current epoch, over all ranks."""
        return self._cursor.position

    @property
    def batch_sampler(self) -> BatchIndices:
        """The same batches as lists of indices; going over them moves nothing."""
        return BatchIndices(self)

    def __len__(self) -> int:
        """The steps that are left in this epoch, the same on every rank."""
        return self._plan.steps_left(self._cursor)

    def __iter__(self) -> Iterator[B]:
        """Go through what is left of this epoch; a loop that was left early goes on where it stopped."""
        return _Loop(self)

    def __next__(self) -> B:
        """The next batch; StopIteration once at the end of each epoch."""
        if self._loop is None:
            self._loop = iter(self)
        try:
            return next(self._loop)
        except BaseException:
            self._loop = None
            raise

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; does nothing when the loader is in that epoch already.

        Args:
            epoch: At least 0.
        """
        if epoch < 0:
            raise ValueError(f"epoch={epoch} must be at least 0")
        if epoch != self._cursor.epoch:
            self._cursor = Cursor(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What brings a loader back to this position: small, JSON-able, counting what was delivered."""
        return State(self._identity, self._cursor, tuple(sorted(self._quarantine))).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position, whatever the batch size, tail, mesh and number of workers are now.

        Raises:
            StateMismatchError: The state was saved over another dataset, seed or algorithm.
        """
        saved = read_state(state, self._identity)
        self._cursor = self._plan.settle(saved.cursor)
        self._quarantine = set(saved.quarantine)
        self.info = None

    def _part(self) -> Part:
        return part_here(self.device_mesh)

    def _deliver(self, delivery: Delivery) -> B:
        info = delivery.info
        self._cursor = self._plan.settle(Cursor(info.epoch, info.position + info.rows))
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
        for step in loader._plan.steps(loader._cursor, loader._part()):
            yield step.indices


class _Loop(Generic[B]):
    """One pass over what is left of an epoch."""

    def __init__(self, loader: DataLoader[B]) -> None:
        self._loader = loader
        self._expected = loader._cursor
        part = loader._part()
        reader = Reader(Sampling(loader._source), loader._collate, sharded=part.data_rank is not None)
        self._deliveries = map(reader.read, loader._plan.steps(loader._cursor, part))

    def __iter__(self) -> _Loop[B]:
        return self

    def __next__(self) -> B:
        loader = self._loader
        if loader._cursor != self._expected:
            raise RuntimeError(
                f"this loop stands at {self._expected} and its loader at {loader._cursor}: another "
                "loop, set_epoch or load_state_dict moved it; start a new loop"
            )
        batch = loader._deliver(next(self._deliveries))
        self._expected = loader._cursor
        return batch
