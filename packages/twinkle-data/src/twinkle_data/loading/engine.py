"""Engines deliver batches in one process; each joins a dataset, an order, a plan of steps and a reader."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_data.cursor import Cursor, Identity
from twinkle_data.loading.in_process import Direct
from twinkle_data.loading.loader_processes.processes import Processes
from twinkle_data.loading.own_copy import claim
from twinkle_data.order.orders import Sequential, Shuffled
from twinkle_data.order.packing import PackPlan
from twinkle_data.order.steps import BatchPlan
from twinkle_data.reading.randomness import Randomness
from twinkle_data.reading.reader import Reader
from twinkle_data.reading.retries import Sampling
from twinkle_data.reading.stream_reader import StreamPlan, StreamReader
from twinkle_data.sources.fingerprint import digest
from twinkle_data.sources.indexed import Objects, build, open_source
from twinkle_data.sources.mixing import MixedOrder, MixedSource, Mixture
from twinkle_data.sources.parts import check_undivided
from twinkle_data.sources.sharded_order import ShardedOrder
from twinkle_data.sources.shards import ShardedSource, Shards
from twinkle_data.sources.streams import open_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from twinkle_data.loading.protocol import Engine, Pipeline, Position, StepReader
    from twinkle_data.loading.recipe import Recipe
    from twinkle_data.order.orders import Order
    from twinkle_data.order.steps import DataShard, Step, StepPlan
    from twinkle_data.sources.indexed import Source
    from twinkle_data.sources.streams import SampleStream


class IndexedEngine:
    """Delivers the batches of a dataset with samples by index.

    Args:
        source: The samples.
        order: Their order.
        recipe: Options of the loader.
    """

    resumable = True
    whole = False

    def __init__(self, source: Source, order: Order, recipe: Recipe) -> None:
        self._source = source
        self._lengths = source.lengths_now()
        self._recipe = recipe
        self.keeps = self.endless = recipe.processes.persistent
        self.plan: StepPlan
        if recipe.packing is None:
            self.plan = BatchPlan(order, recipe.batch_size, recipe.tail)
        else:
            self.plan = PackPlan(
                order,
                recipe.packing,
                dataset_length=len(source),
                batch_size=recipe.batch_size,
                data_world_size=recipe.data_world_size,
                tail=recipe.tail,
            )
        known = source.fingerprint if recipe.fingerprint is None else digest(recipe.fingerprint)
        self.identity = Identity(order.algorithm, recipe.seed, order.length, known)

    def carried(self) -> dict[str, Any]:
        """Return nothing: an order is a function of the position."""
        return {}

    def carry(self, state: dict[str, Any]) -> None:
        """Do nothing."""

    def check_lengths(self) -> None:
        """Check that the dataset is as long as it was.

        Raises:
            ValueError: It has grown or shrunk: the new rows have no place in the order.
        """
        now = self._source.lengths_now()
        if now != self._lengths:
            raise ValueError(
                f"the dataset had {_shown(self._lengths)} samples when its loader was made, and has {_shown(now)} now: "
                "some samples would never be read, or no longer exist. Make a new DataLoader over it"
            )

    def run(self, position: Position, shard: DataShard, quarantine: Iterable[int], *, whole: bool = False) -> Pipeline:
        """Deliver from a position to the end of its epoch, or without an end where processes persist."""
        self.check_lengths()
        recipe = self._recipe
        randomness = Randomness(recipe.seed, recipe.sample_seeds)
        sizes = self.plan.lengths if isinstance(self.plan, PackPlan) else None
        source = self._source
        if isinstance(source, ShardedSource):
            processes = max(recipe.processes.num_workers, 1)
            source = source.for_share(1 / processes / (1 if shard.data_rank is None else shard.data_world_size))
        sampling = Sampling(source, randomness, recipe.policy, quarantine, sizes)
        world = 0 if shard.data_rank is None else shard.data_world_size
        some_empty = isinstance(self.plan, BatchPlan) and self.plan.leaves_out(position.cursor, world)
        sharded = shard.data_rank is not None and not whole
        reader = Reader(sampling, recipe.collate, randomness, sharded=sharded, some_empty=some_empty)
        steps = partial(steps_from, self.plan, position, shard, endless=recipe.processes.persistent)
        return _pipeline(reader, steps, recipe, shard)


class StreamEngine:
    """Delivers the batches of a stream.

    Args:
        stream: The samples.
        recipe: Options of the loader.
        name: Name of the dataset in error texts.
    """

    keeps = True
    endless = False
    whole = False

    def __init__(self, stream: SampleStream, recipe: Recipe, name: str) -> None:
        if recipe.policy.on_error != "raise":
            raise ValueError(
                f"on_error={recipe.policy.on_error!r} needs samples by index: a stream that raised cannot continue"
            )
        if recipe.packing is not None:
            raise ValueError("packing needs samples by index; pack inside the stream")
        self._stream = stream
        self._name = name
        # A second process would read all samples again, only to drop them.
        workers = min(recipe.processes.num_workers, 1)
        self._recipe = replace(recipe, processes=replace(recipe.processes, num_workers=workers, persistent=False))
        self.plan: StepPlan = StreamPlan(recipe.batch_size)
        self.resumable = stream.resumable
        known = stream.fingerprint if recipe.fingerprint is None else digest(recipe.fingerprint)
        self.identity = Identity(stream.algorithm, recipe.seed, None, known)

    def carried(self) -> dict[str, Any]:
        """Return the changes of the passes so far on the stream."""
        return self._stream.carried()

    def carry(self, state: dict[str, Any]) -> None:
        """Change the stream as passes elsewhere have changed their copy of it."""
        self._stream.carry(state)

    def check_lengths(self) -> None:
        """Do nothing: a stream has no length."""

    def run(self, position: Position, shard: DataShard, quarantine: Iterable[int], *, whole: bool = False) -> Pipeline:
        """Deliver from a position on to the end of its epoch."""
        recipe = self._recipe
        reader = StreamReader(
            self._stream,
            batch_size=recipe.batch_size,
            tail=recipe.tail,
            shard=shard,
            sharded=shard.data_rank is not None and not whole,
            collate=recipe.collate,
            randomness=Randomness(recipe.seed, recipe.sample_seeds),
            name=self._name,
            digests=shard.data_world_size > 1 and recipe.sample_seeds is not None and recipe.fingerprint is None,
        )
        return _pipeline(reader, partial(steps_from, self.plan, position, shard, endless=False), recipe, shard)


def open_engine(dataset: object, recipe: Recipe) -> Engine:
    """The engine for a dataset of any kind.

    Args:
        dataset: Anything that `DataLoader` takes.
        recipe: Options of the loader.
    """
    built, factory = build(dataset)
    for one in (built, factory):
        check_undivided(one, recipe.data_world_size, f"the dataset {type(built).__name__}")
    seed, shuffle = recipe.seed, recipe.shuffle
    if isinstance(built, Mixture):
        order: Order = MixedOrder(built.lengths, built.quotas, built.epoch_length, seed, shuffle=shuffle)
        return IndexedEngine(MixedSource(built), order, recipe)
    if isinstance(built, Shards) and built.lengths is not None:
        return IndexedEngine(
            ShardedSource(built, shuffled=shuffle), ShardedOrder(built.lengths, seed, shuffle=shuffle), recipe
        )
    stream = open_stream(built, factory, seed, shuffle=shuffle)
    if stream is not None:
        claim(stream.dataset)
        return StreamEngine(stream, recipe, getattr(factory or type(built), "__name__", type(built).__name__))
    source = open_source(built)
    if isinstance(source, Objects):
        source.factory = factory
    length = len(source)
    return IndexedEngine(source, Shuffled(length, seed) if shuffle else Sequential(length), recipe)


def steps_from(plan: StepPlan, position: Position, shard: DataShard, *, endless: bool) -> Iterator[Step]:
    """The steps from a position to the end of its epoch, or through all epochs."""
    cursor = position.cursor
    steps = plan.steps(cursor, shard)
    if position.source is not None:
        yield next(steps)._replace(source=position.source)
    yield from steps
    while endless:
        cursor = Cursor(cursor.epoch + 1)
        yield from plan.steps(cursor, shard)


def _shown(lengths: tuple[int, ...]) -> str:
    return " + ".join(map(str, lengths[:8])) + (" + ..." if len(lengths) > 8 else "")


def _pipeline(reader: StepReader, steps: Callable[[], Iterator[Step]], recipe: Recipe, shard: DataShard) -> Pipeline:
    options = recipe.processes
    if options.num_workers:
        return Processes(
            reader, steps, options, key=(recipe.seed, 0 if shard.data_rank is None else shard.data_rank + 1)
        )
    return Direct(reader, steps, pin_memory=options.pin_memory)
