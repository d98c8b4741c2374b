"""What delivers batches in one process: a dataset, the order of its samples, the plan of steps and their readers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_data.cursor import Cursor, Identity
from twinkle_data.loading.processes import Direct, Processes, ProcessOptions
from twinkle_data.order.orders import Sequential, Shuffled
from twinkle_data.order.packing import PackPlan
from twinkle_data.order.steps import BatchPlan
from twinkle_data.order.tails import TAILS, Tail, check_batch_size
from twinkle_data.reading.randomness import Randomness
from twinkle_data.reading.reader import Reader
from twinkle_data.reading.retries import Policy, Sampling
from twinkle_data.reading.stream_reader import StreamPlan, StreamReader
from twinkle_data.sources.fingerprint import digest
from twinkle_data.sources.indexed import Objects, build, open_source
from twinkle_data.sources.mixing import MixedOrder, MixedSource, Mixture
from twinkle_data.sources.shards import ShardedOrder, ShardedSource, Shards, open_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from twinkle_data.batch import Batch
    from twinkle_data.loading.process_messages import StepReader
    from twinkle_data.order.orders import Order
    from twinkle_data.order.steps import Part, Plan, Step
    from twinkle_data.reading.reader import Delivery
    from twinkle_data.sources.indexed import Source
    from twinkle_data.sources.shards import Stream


@dataclass(frozen=True, slots=True)
class Recipe:
    """How batches are made of a dataset; `DataLoader` documents each field.

    Attributes:
        data_world_size: Number of data ranks that the global batches are for.
    """

    batch_size: int
    data_world_size: int = 1
    shuffle: bool = False
    seed: int = 0
    tail: Tail = "drop"
    collate: Callable[[Batch[Any]], Any] | None = None
    policy: Policy = field(default_factory=Policy)
    processes: ProcessOptions = field(default_factory=ProcessOptions)
    sample_seeds: bool = True
    fingerprint: str | None = None
    lengths: Sequence[int] | None = None
    max_tokens: int | None = None
    micro_batches: int = 1

    def __post_init__(self) -> None:
        if self.tail not in TAILS:
            raise ValueError(f"tail={self.tail!r} is not one of {', '.join(map(repr, TAILS))}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed={self.seed} is outside [0, 2**64 - 1]")
        check_batch_size(self.batch_size, self.data_world_size)
        if (self.lengths is None) != (self.max_tokens is None):
            raise ValueError("packing needs both: lengths=, the tokens of each sample, and max_tokens=")
        if self.micro_batches != 1 and self.max_tokens is None:
            raise ValueError(
                f"micro_batches={self.micro_batches} belongs to packing: give lengths= and max_tokens= too"
            )


class Place:
    """Where a loader is: moved by what it delivers, read by what begins anew.

    Attributes:
        cursor: The first sample that was not delivered.
        source: Where a stream was there, in its own words.
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


class Engine(Protocol):
    """Delivers batches of one dataset.

    Attributes:
        identity: What the order is a function of.
        plan: Where steps begin and end.
        resumable: Any position can be come back to, rather than only the front of an epoch.
        keeps: What was read ahead is kept when a loop is left.
        endless: A pipeline goes on over the end of an epoch.
    """

    identity: Identity
    plan: Plan
    resumable: bool
    keeps: bool
    endless: bool

    def run(self, place: Place, part: Part, quarantine: Iterable[int], *, whole: bool = False) -> Pipeline:
        """Deliver from a place on: at least to the end of its epoch.

        Args:
            place: Read again whenever reading begins anew.
            part: Whose rows.
            quarantine: Indices that are known to be bad.
            whole: Batches stand for part of a whole that others see, so they are not marked as a rank's own share.
        """


class IndexedEngine:
    """Delivers samples that are read by index.

    Args:
        source: The samples.
        order: Their order.
        recipe: How batches are made of them.
    """

    resumable = True

    def __init__(self, source: Source, order: Order, recipe: Recipe) -> None:
        self._source = source
        self._recipe = recipe
        self.keeps = self.endless = recipe.processes.persistent
        self.plan: Plan
        if recipe.lengths is None or recipe.max_tokens is None:
            self.plan = BatchPlan(order, recipe.batch_size, recipe.tail)
        else:
            self.plan = PackPlan(
                order,
                recipe.lengths,
                dataset_length=len(source),
                batch_size=recipe.batch_size,
                max_tokens=recipe.max_tokens,
                micro_batches=recipe.micro_batches,
                data_world_size=recipe.data_world_size,
                tail=recipe.tail,
            )
        known = source.fingerprint if recipe.fingerprint is None else digest(recipe.fingerprint)
        self.identity = Identity(order.algorithm, recipe.seed, order.length, known)

    def run(self, place: Place, part: Part, quarantine: Iterable[int], *, whole: bool = False) -> Pipeline:
        """Deliver from a place on: to the end of its epoch, or for ever where processes persist."""
        recipe = self._recipe
        randomness = Randomness(recipe.seed, enabled=recipe.sample_seeds)
        sizes = self.plan.lengths if isinstance(self.plan, PackPlan) else None
        sampling = Sampling(self._source, randomness, recipe.policy, quarantine, sizes)
        reader = Reader(sampling, recipe.collate, randomness, sharded=part.data_rank is not None and not whole)
        steps = partial(steps_from, self.plan, place, part, endless=recipe.processes.persistent)
        return _pipeline(reader, steps, recipe, part)


class StreamEngine:
    """Delivers samples that are gone through.

    Args:
        stream: The samples.
        recipe: How batches are made of them.
        name: What the dataset is called in messages.
    """

    keeps = True
    endless = False

    def __init__(self, stream: Stream, recipe: Recipe, name: str) -> None:
        if recipe.policy.on_error != "raise":
            raise ValueError(
                f"on_error={recipe.policy.on_error!r} needs samples by index: a stream that raised cannot go on"
            )
        if recipe.max_tokens is not None:
            raise ValueError("packing by lengths= needs samples by index; pack inside of a stream")
        self._stream = stream
        self._name = name
        # A second process would go through the same samples, and only to leave them out.
        workers = min(recipe.processes.num_workers, 1)
        self._recipe = replace(recipe, processes=replace(recipe.processes, num_workers=workers, persistent=False))
        self.plan: Plan = StreamPlan(recipe.batch_size)
        self.resumable = stream.resumable
        known = stream.fingerprint if recipe.fingerprint is None else digest(recipe.fingerprint)
        self.identity = Identity(stream.algorithm, recipe.seed, None, known)

    def run(self, place: Place, part: Part, quarantine: Iterable[int], *, whole: bool = False) -> Pipeline:
        """Deliver from a place on to the end of its epoch."""
        recipe = self._recipe
        reader = StreamReader(
            self._stream,
            batch_size=recipe.batch_size,
            tail=recipe.tail,
            part=part,
            sharded=part.data_rank is not None and not whole,
            collate=recipe.collate,
            randomness=Randomness(recipe.seed, enabled=recipe.sample_seeds),
            name=self._name,
        )
        return _pipeline(reader, partial(steps_from, self.plan, place, part, endless=False), recipe, part)


def open_engine(dataset: object, recipe: Recipe) -> Engine:
    """Find out what a dataset is, and how it is delivered.

    Args:
        dataset: Anything that `DataLoader` takes.
        recipe: How batches are made of it.
    """
    built, factory = build(dataset)
    seed, shuffle = recipe.seed, recipe.shuffle
    if isinstance(built, Mixture):
        order: Order = MixedOrder(built.lengths, built.quotas, built.epoch_length, seed, shuffle=shuffle)
        return IndexedEngine(MixedSource(built), order, recipe)
    if isinstance(built, Shards) and built.lengths is not None:
        return IndexedEngine(ShardedSource(built), ShardedOrder(built.lengths, seed, shuffle=shuffle), recipe)
    stream = open_stream(built, factory, seed, shuffle=shuffle)
    if stream is not None:
        return StreamEngine(stream, recipe, getattr(factory or type(built), "__name__", type(built).__name__))
    source = open_source(built)
    if isinstance(source, Objects):
        source.factory = factory
    length = len(source)
    return IndexedEngine(source, Shuffled(length, seed) if shuffle else Sequential(length), recipe)


def steps_from(plan: Plan, place: Place, part: Part, *, endless: bool) -> Iterator[Step]:
    """The steps from a place to the end of its epoch, or through all epochs."""
    cursor = place.cursor
    steps = plan.steps(cursor, part)
    if place.source is not None:
        yield next(steps)._replace(source=place.source)
    yield from steps
    while endless:
        cursor = Cursor(cursor.epoch + 1)
        yield from plan.steps(cursor, part)


def _pipeline(reader: StepReader, steps: Callable[[], Iterator[Step]], recipe: Recipe, part: Part) -> Pipeline:
    options = recipe.processes
    if options.num_workers:
        return Processes(reader, steps, options, key=(recipe.seed, 0 if part.data_rank is None else part.data_rank + 1))
    return Direct(reader, steps, pin_memory=options.pin_memory)
