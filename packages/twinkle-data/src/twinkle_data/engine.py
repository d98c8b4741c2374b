"""What delivers batches in one process: the dataset, its order, the plan of steps and the readers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_data.cursor import Cursor, Identity
from twinkle_data.fingerprint import digest
from twinkle_data.order import Sequential, Shuffled
from twinkle_data.plan import BatchPlan
from twinkle_data.processes import Direct, Processes
from twinkle_data.randomness import Randomness
from twinkle_data.reader import Reader
from twinkle_data.samples import Sampling
from twinkle_data.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from twinkle_data.batch import Batch
    from twinkle_data.order import Order
    from twinkle_data.plan import Part, Plan, Step
    from twinkle_data.processes import ProcessOptions
    from twinkle_data.reader import Delivery
    from twinkle_data.samples import Policy
    from twinkle_data.tails import Tail


class Place:
    """Where a loader is: moved by what it delivers, read by what begins anew.

    Attributes:
        cursor: The first sample that was not delivered.
        source: Where an iterable source was there.
    """

    __slots__ = ("cursor", "source")

    def __init__(self, cursor: Cursor, source: Any = None) -> None:
        self.cursor = cursor
        self.source = source


class Pipeline(Protocol):
    """Deliveries from a place on."""

    def __next__(self) -> Delivery: ...

    def close(self) -> None:
        """End what runs for it."""


class Engine:
    """Delivers batches of one dataset.

    Args:
        dataset: The dataset, or a callable that builds it.
        batch_size: Samples of a global batch.
        shuffle: Another permutation in each epoch.
        seed: Seed of the order and of the samples' randomness.
        tail: What becomes of an epoch's last rows.
        collate: Makes what the loop sees of a `Batch`.
        policy: What is done about samples that cannot be read.
        processes: How batches are read ahead.
        sample_seeds: Whether the global generators are seeded for each sample.
        fingerprint: Says what the dataset is; None asks the dataset.
    """

    def __init__(
        self,
        dataset: object,
        *,
        batch_size: int,
        shuffle: bool,
        seed: int,
        tail: Tail,
        collate: Callable[[Batch[Any]], Any] | None,
        policy: Policy,
        processes: ProcessOptions,
        sample_seeds: bool,
        fingerprint: str | None,
    ) -> None:
        self._source = open_source(dataset)
        length = len(self._source)
        order: Order = Shuffled(length, seed) if shuffle else Sequential(length)
        self.plan: Plan = BatchPlan(order, batch_size, tail)
        known = self._source.fingerprint if fingerprint is None else digest(fingerprint)
        self.identity = Identity(order.algorithm, seed, length, known)
        self._collate = collate
        self._policy = policy
        self._processes = processes
        self._sample_seeds = sample_seeds

    def run(self, place: Place, part: Part, quarantine: Iterable[int]) -> Pipeline:
        """Deliver from a place on: to the end of its epoch, or for ever where processes are persistent.

        Args:
            place: Read again whenever reading begins anew.
            part: Whose rows.
            quarantine: Indices that are known to be bad.
        """
        randomness = Randomness(self.identity.seed, enabled=self._sample_seeds)
        sampling = Sampling(self._source, randomness, self._policy, quarantine)
        reader = Reader(sampling, self._collate, randomness, sharded=part.data_rank is not None)
        options = self._processes
        steps = partial(steps_from, self.plan, place, part, endless=options.persistent)
        if options.num_workers:
            return Processes(reader, steps, options)
        return Direct(reader, steps, pin_memory=options.pin_memory)


def steps_from(plan: Plan, place: Place, part: Part, *, endless: bool) -> Iterator[Step]:
    """The steps from a place to the end of its epoch, or through all epochs."""
    cursor = place.cursor
    yield from plan.steps(cursor, part)
    while endless:
        cursor = Cursor(cursor.epoch + 1)
        yield from plan.steps(cursor, part)
