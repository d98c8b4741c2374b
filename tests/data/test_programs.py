"""Programs of a loader against a page of plain Python: any dataset; loops, jumps, states, copies, errors, Ctrl-C.

`TWINKLE_LIVES=2000` runs as many of them.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections import Counter
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.data.kinds_of_datasets import DATASETS, OWN, STREAMS, value_of
from tests.data.on_ranks import on_ranks, rows_of

from twinkle_data import BadSampleError, DataLoader, Mixture, StateMismatchError
from twinkle_data.order import Permutation
from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROGRAMS = int(os.environ.get("TWINKLE_LIVES", "160"))


class BrokenError(Exception):
    """What a sample raises."""


class Rows:
    """Numbers, some of which raise once."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        self.raises: dict[int, BaseException] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        error = self.raises.pop(index, None)
        if error is not None:
            raise error
        return self.rows[index]


class Together(Rows):
    """Reads the rows of a step at once; the loader reads a step that failed once more, row by row."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


FAILING = {"rows that raise": Rows, "rows that raise together": Together}
KINDS: dict[str, Callable[[list[int]], Any]] = {**DATASETS, **FAILING}


@cache
def plain_pass(kind: str, values: tuple[int, ...], epoch: int) -> Sequence[int]:
    """The rows of an epoch without a loader; Hugging Face's streams read their shards in an order of the epoch's."""
    if not kind.startswith("hf") or kind not in STREAMS:
        return values
    stream = KINDS[kind](list(values))
    stream.set_epoch(epoch)
    return [value_of(row) for row in stream]


class Page(NamedTuple):
    """The reference: what a loader is to give, by a position alone."""

    kind: str
    values: tuple[int, ...]
    seed: int
    shuffle: bool
    batch_size: int
    drop_last: bool
    epoch: int = 0
    position: int = 0

    def indices(self) -> list[int]:
        whole = list(range(len(self.values)))
        if self.shuffle:
            whole = Permutation(len(whole), self.seed, self.epoch).block(0, len(whole)).tolist()
        return whole[self.position : self.position + self.batch_size]

    def rows(self) -> list[int]:
        values = plain_pass(self.kind, self.values, self.epoch)
        return [values[index] for index in self.indices()]

    def steps_left(self) -> int:
        full, rest = divmod(len(self.values) - self.position, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def at(self, epoch: int, position: int) -> Page:
        """The end of an epoch is the start of the next one; of a stream it is not known before it is read."""
        moved = self._replace(epoch=epoch, position=position)
        return moved if self.kind in STREAMS or moved.steps_left() else moved._replace(epoch=epoch + 1, position=0)

    def after_a_step(self) -> Page:
        return self.at(self.epoch, self.position + len(self.rows()))

    def in_epoch(self, epoch: int) -> bool:
        return self.epoch == epoch and self.steps_left() > 0


class Program:
    """One dataset, and a loader for each data rank; they take their steps together."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.kind = draw.choice([*sorted(DATASETS), *sorted(FAILING) * 7])
        self.rows, self.stream = draw.sample(range(100), draw.randint(8, 30)), self.kind in STREAMS
        self.seed, self.shuffle = draw.randrange(50), not self.stream and draw.random() < 0.6
        self.saved: list[dict[str, Any]] = []
        self.loaders: list[DataLoader[Any]] = []
        self.build(None)

    def build(self, state: dict[str, Any] | None) -> None:
        """New loaders, on other ranks, with other options."""
        draw = self.draw
        ranks = draw.choice([1, 1, 2, 3])
        self.workers = int(draw.random() < 0.04)
        self.mesh = DeviceMesh.from_sizes(dp_size=ranks, tp_size=draw.choice([1, 2]))
        batch_size, drop_last = ranks * draw.randint(1, min(3, len(self.rows) // ranks)), draw.random() < 0.4
        options: Any = {
            "batch_size": batch_size,
            "drop_last": drop_last,
            "collate_fn": draw.choice([None, list]),
            "sample_seeds": draw.random() < 0.5,
            "num_workers": self.workers,
        }
        if self.workers:
            options |= {"prefetch_factor": draw.randint(1, 3), "persistent_workers": draw.random() < 0.5}
        self.datasets = [KINDS[self.kind](list(self.rows)) for _ in range(ranks)]

        def make(dataset: Any) -> DataLoader[Any]:
            fixed: Any = {"device_mesh": self.mesh, "shuffle": self.shuffle, "seed": self.seed}
            loader: DataLoader[Any] = DataLoader(dataset, **fixed, **options)
            if state is not None:
                loader.load_state_dict(state)
            return loader

        if state is not None and not self.stream and self.kind not in (*OWN, *FAILING):
            with pytest.raises(StateMismatchError):
                on_ranks(self.mesh, make, [KINDS[self.kind]([777, *self.rows[1:]])] * ranks)
        self.loaders = on_ranks(self.mesh, make, self.datasets)
        self.page = Page(self.kind, tuple(self.rows), self.seed, self.shuffle, batch_size, drop_last)
        if state is not None:
            self.page = self.page.at(state["epoch"], state["position"])

    def each(self, job: Callable[..., Any], *values: list[Any]) -> list[Any]:
        return on_ranks(self.mesh, job, *(values or (self.loaders,)))

    def step(self, batches: Any, flags: Any) -> list[int]:
        """The rows of a step of all ranks."""
        parts = zip(batches, flags, strict=True)
        return [value_of(row) for part in parts for row, valid in zip(*part, strict=True) if valid]

    def take(self, batches: list[Any]) -> None:
        """Compare a step with the page, and go on."""
        assert self.step(batches, [loader.info.valid for loader in self.loaders if loader.info]) == self.page.rows()
        self.page = self.page.after_a_step()

    def check(self) -> None:
        assert self.stream or self.each(len) == [self.page.steps_left()] * len(self.loaders)
        for loader in self.loaders:
            assert (loader.epoch, loader.position) == (self.page.epoch, self.page.position)

    def loop(self) -> None:
        """A `for` loop that is left after some steps, or at the end of its epoch."""
        epoch = self.page.epoch
        loops = self.each(iter)
        for _ in range(self.draw.randint(1, 6)):
            if not self.page.in_epoch(epoch):
                assert self.each(lambda running: next(running, None), loops) == [None] * len(loops)
                self.page = self.page.at(epoch + 1, 0)
                break
            self.take(self.each(next, loops))

    def rest(self) -> None:
        """A `for` loop over the rest of the epoch."""
        expected, epoch = [], self.page.epoch
        while self.page.in_epoch(epoch):
            expected.append(self.page.rows())
            self.page = self.page.after_a_step()
        by_rank = self.each(lambda loader: [(list(batch), loader.info.valid) for batch in loader])
        assert [self.step(*zip(*parts, strict=True)) for parts in zip(*by_rank, strict=True)] == expected
        self.page = self.page.at(epoch + 1, 0)

    def save(self) -> None:
        (state,) = {json.dumps(loader.state_dict()) for loader in self.loaders}
        self.saved.append(json.loads(state))

    def load(self) -> None:
        if not self.saved:
            return
        state = self.draw.choice(self.saved)
        if self.draw.random() < 0.6:
            self.build(state)
            return
        self.each(lambda loader: loader.load_state_dict(state))
        self.page = self.page.at(state["epoch"], state["position"])

    def jump(self) -> None:
        epoch = self.draw.choice([self.page.epoch, self.page.epoch + 1, 0, 5])
        self.each(lambda loader: loader.set_epoch(epoch))
        if epoch != self.page.epoch:
            self.page = self.page.at(epoch, 0)

    def copy(self) -> None:
        if not self.workers and self.kind != "closure":
            pairs = pickle.loads(pickle.dumps(list(zip(self.loaders, self.datasets, strict=True))))
            self.loaders, self.datasets = [list(one) for one in zip(*pairs, strict=True)]

    def fail(self) -> None:
        """A sample raises, or Ctrl-C comes while it is read: the step is not counted, and comes again."""
        if self.workers or self.kind not in FAILING:
            return
        wrong = self.draw.choice(self.page.indices())
        error = self.draw.choice([BrokenError("broken"), KeyboardInterrupt()])
        for dataset in self.datasets:
            dataset.raises[wrong] = error

        def attempt(loader: DataLoader[Any]) -> Any:
            try:
                return next(iter(loader))
            except (BadSampleError, KeyboardInterrupt):
                assert (loader.epoch, loader.position) == (self.page.epoch, self.page.position)
                return None

        batches = self.each(attempt)
        # What is read together is read once more, row by row, unless Ctrl-C came.
        assert None in batches or ("together" in self.kind and isinstance(error, BrokenError))
        for dataset in self.datasets:
            dataset.raises.clear()
        self.take(self.each(lambda one, got: next(iter(one)) if got is None else got, self.loaders, batches))


OPERATIONS = ("loop", "loop", "rest", "save", "load", "load", "jump", "copy", "fail")


def run_program(seed: int) -> None:
    draw = random.Random(seed)
    program = Program(draw)
    done: list[str] = []
    try:
        for _ in range(draw.randint(4, 14)):
            done.append(draw.choice(OPERATIONS))
            getattr(program, done[-1])()
            program.check()
    except Exception as error:
        error.add_note(f"program {seed}: {program.page}, {done}")
        raise


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("part", range(4))
def test_a_program_gives_what_a_page_gives(part: int) -> None:
    for seed in range(part, PROGRAMS, 4):
        run_program(seed)


def loaders_of(dataset: Any, state: dict[str, Any] | None, mesh: DeviceMesh, **options: Any) -> list[DataLoader[Any]]:
    def make() -> DataLoader[Any]:
        loader: DataLoader[Any] = DataLoader(dataset, device_mesh=mesh, drop_last=False, **options)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    return on_ranks(mesh, make)


def packed_run(seed: int) -> None:
    """Packs on changing ranks, with changing budgets: each sample once, in the order's steps, never beyond a budget."""
    draw = random.Random(seed)
    length, shuffle = draw.randint(5, 40), draw.random() < 0.5
    tokens = [draw.randint(1, 20) for _ in range(length)]
    rows = [{"input_ids": [row] * count} for row, count in enumerate(tokens)]
    order = Permutation(length, 3, 0).block(0, length).tolist() if shuffle else list(range(length))
    told: list[int] = []
    state: dict[str, Any] | None = None
    while True:
        ranks, budget, size = draw.choice([1, 2, 3]), draw.randint(20, 50), draw.randint(3, 20)
        mesh = DeviceMesh.from_sizes(dp_size=ranks)
        options: Any = {"batch_size": size, "max_tokens": budget, "shuffle": shuffle, "seed": 3}
        loaders = loaders_of(rows, state, mesh, **options)
        loops = on_ranks(mesh, iter, loaders)
        for _ in range(draw.randint(1, 3)):
            left, step = len(loaders[0]), []
            for (pack,) in on_ranks(mesh, next, loops):
                assert len(pack) and sum(len(row["input_ids"]) for row in pack) <= budget
                step += [row for row, valid in zip(pack.indices, pack.valid, strict=True) if valid]
            assert sorted(step) == sorted(order[len(told) : len(told) + len(step)])
            told += step
            if loaders[0].epoch:
                assert left == 1
                assert sorted(told) == list(range(length))
                return
            assert len(loaders[0]) == left - 1
        state = json.loads(json.dumps(loaders[0].state_dict()))


def test_packs_of_changing_runs_hold_each_sample_once() -> None:
    for seed in range(40):
        packed_run(seed)


def mixed_run(seed: int) -> None:
    """A mixture on changing ranks: its exact shares in each epoch, and a dataset's rows equally often over all."""
    draw = random.Random(seed)
    lengths = {name: draw.randint(1, 12) for name in "abc"[: draw.randint(1, 3)]}
    weights = draw.choice([None, {name: draw.randint(1, 5) for name in lengths}])
    mixture = Mixture({name: [(name, row) for row in range(length)] for name, length in lengths.items()}, weights)
    shuffle, epochs, told = draw.random() < 0.7, draw.randint(1, 4), Counter[tuple[str, int]]()
    state: dict[str, Any] | None = None
    for epoch in range(epochs):
        step, mine = 0, Counter[str]()
        while step < len(mixture):
            ranks = draw.choice([1, 2, 3])
            size, mesh = ranks * draw.randint(1, 3), DeviceMesh.from_sizes(dp_size=ranks)
            taken = draw.randint(1, 4)
            loaders = loaders_of(mixture, state, mesh, batch_size=size, shuffle=shuffle, seed=seed)
            assert {(loader.epoch, loader.position) for loader in loaders} == {(epoch, step)}
            rows = rows_of(sum(on_ranks(mesh, lambda loader: list(islice(loader, taken)), loaders), []))  # noqa: B023, RUF017  runs at once
            told.update(rows)
            mine.update(name for name, _ in rows)
            step += len(rows)
            state = json.loads(json.dumps(loaders[-1].state_dict()))
        assert dict(mine) == {name: share for name, share in zip(lengths, mixture.shares, strict=True) if share}
    for name, length in lengths.items():
        counts = [told[name, row] for row in range(length)]
        assert max(counts) - min(counts) <= 1, (seed, name, counts)


def test_mixtures_of_changing_runs_have_their_shares() -> None:
    for seed in range(40):
        mixed_run(seed)
