"""Programs of a loader against a page of plain Python: loops, breaks, jumps, states, copies, errors, Ctrl-C.

`TWINKLE_LIVES=2000` runs as many of them. Lives (test_lives.py) draw the dataset; programs draw what is done with it.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from twinkle_data import BadSampleError, DataLoader, Mixture
from twinkle_data.order import Permutation
from twinkle_mesh import DeviceMesh, use_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAMS = int(os.environ.get("TWINKLE_LIVES", "120"))


class BrokenError(Exception):
    """What a sample raises."""


class Rows:
    """Numbers, some of which raise once."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.raises: dict[int, BaseException] = {}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        error = self.raises.pop(index, None)
        if error is not None:
            raise error
        return index


class Together(Rows):
    """Reads the rows of a step at once; the loader reads a step that failed once more, row by row."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Page(NamedTuple):
    """The reference: what a loader is to give, by a position alone."""

    length: int
    seed: int
    shuffle: bool
    batch_size: int
    drop_last: bool
    epoch: int = 0
    position: int = 0

    def order(self) -> list[int]:
        whole = Permutation(self.length, self.seed, self.epoch).block(0, self.length).tolist()
        return whole if self.shuffle else list(range(self.length))

    def rows(self) -> list[int]:
        return self.order()[self.position : self.position + self.batch_size]

    def steps_left(self) -> int:
        full, rest = divmod(self.length - self.position, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def at(self, epoch: int, position: int) -> Page:
        moved = self._replace(epoch=epoch, position=position)
        return moved if moved.steps_left() else moved._replace(epoch=epoch + 1, position=0)

    def after_a_step(self) -> Page:
        return self.at(self.epoch, self.position + len(self.rows()))


class Program:
    """One dataset, and a loader for each data rank; they take their steps together."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.kind = draw.choice([Rows, Together])
        self.length, self.seed, self.shuffle = draw.randint(6, 30), draw.randrange(50), draw.random() < 0.6
        self.saved: list[dict[str, Any]] = []
        self.loaders: list[DataLoader[Any]] = []
        self.build(None)

    def build(self, state: dict[str, Any] | None) -> None:
        """New loaders, on other ranks, with other options."""
        draw = self.draw
        ranks = draw.choice([1, 1, 2, 3])
        batch_size = ranks * draw.randint(1, min(3, self.length // ranks))
        drop_last = draw.random() < 0.4
        self.workers = int(draw.random() < 0.05)
        self.mesh = DeviceMesh.from_sizes(dp_size=ranks, tp_size=draw.choice([1, 2]))
        options: Any = {"num_workers": self.workers, "collate_fn": draw.choice([None, list])}
        if self.workers:
            options |= {"prefetch_factor": draw.randint(1, 3), "persistent_workers": draw.random() < 0.5}
        self.datasets = [self.kind(self.length) for _ in range(ranks)]

        def make(dataset: Rows) -> DataLoader[Any]:
            loader: DataLoader[Any] = DataLoader(
                dataset,
                batch_size=batch_size,
                device_mesh=self.mesh,
                shuffle=self.shuffle,
                seed=self.seed,
                drop_last=drop_last,
                **options,
            )
            if state is not None:
                loader.load_state_dict(state)
            return loader

        self.loaders = self.on_ranks(make, self.datasets)
        self.page = Page(self.length, self.seed, self.shuffle, batch_size, drop_last)
        if state is not None:
            self.page = self.page.at(state["epoch"], state["position"])

    def on_ranks(self, job: Callable[[Any], Any], values: list[Any] | None = None) -> list[Any]:
        found = []
        for rank, value in zip(self.mesh.collect_ranks, self.loaders if values is None else values, strict=True):
            with use_rank(rank):
                found.append(job(value))
        return found

    def take(self, batches: list[Any]) -> None:
        """Compare a step with the page, and go on."""
        rows = []
        for loader, batch in zip(self.loaders, batches, strict=True):
            assert loader.info is not None
            rows += [row for row, valid in zip(batch, loader.info.valid, strict=True) if valid]
        assert rows == self.page.rows()
        self.page = self.page.after_a_step()

    def check(self) -> None:
        assert self.on_ranks(len) == [self.page.steps_left()] * len(self.loaders)
        for loader in self.loaders:
            assert (loader.epoch, loader.position) == (self.page.epoch, self.page.position)

    def loop(self) -> None:
        """A `for` loop that is left after some steps, or at the end of its epoch."""
        epoch = self.page.epoch
        loops = self.on_ranks(iter)
        for _ in range(self.draw.randint(1, 6)):
            if self.page.epoch != epoch:
                assert self.on_ranks(lambda running: next(running, None), loops) == [None] * len(loops)
                break
            self.take(self.on_ranks(next, loops))

    def rest(self) -> None:
        """A `for` loop over the rest of the epoch."""
        expected, page = [], self.page
        while page.epoch == self.page.epoch:
            expected.append(page.rows())
            page = page.after_a_step()
        by_rank = self.on_ranks(lambda loader: [(list(batch), loader.info.valid) for batch in loader])
        steps = [
            [row for batch, flags in parts for row, valid in zip(batch, flags, strict=True) if valid]
            for parts in zip(*by_rank, strict=True)
        ]
        assert steps == expected
        self.page = page

    def save(self) -> None:
        states = {json.dumps(loader.state_dict()) for loader in self.loaders}
        (state,) = states
        self.saved.append(json.loads(state))

    def load(self) -> None:
        if not self.saved:
            return
        state = self.draw.choice(self.saved)
        if self.draw.random() < 0.6:
            self.build(state)
            return
        self.on_ranks(lambda loader: loader.load_state_dict(state))
        self.page = self.page.at(state["epoch"], state["position"])

    def jump(self) -> None:
        epoch = self.draw.choice([self.page.epoch, self.page.epoch + 1, 0, 5])
        self.on_ranks(lambda loader: loader.set_epoch(epoch))
        if epoch != self.page.epoch:
            self.page = self.page.at(epoch, 0)

    def copy(self) -> None:
        if not self.workers:
            pairs = pickle.loads(pickle.dumps(list(zip(self.loaders, self.datasets, strict=True))))
            self.loaders, self.datasets = [list(one) for one in zip(*pairs, strict=True)]

    def fail(self) -> None:
        """A sample raises, or Ctrl-C comes while it is read: the step is not counted, and comes again."""
        if self.workers:
            return
        wrong = self.draw.choice(self.page.rows())
        error = self.draw.choice([BrokenError("broken"), KeyboardInterrupt()])
        for dataset in self.datasets:
            dataset.raises[wrong] = error

        def attempt(loader: DataLoader[Any]) -> Any:
            try:
                return next(iter(loader))
            except (BadSampleError, KeyboardInterrupt):
                assert (loader.epoch, loader.position) == (self.page.epoch, self.page.position)
                return None

        batches = self.on_ranks(attempt)
        # What is read together is read once more, row by row, unless Ctrl-C came.
        assert None in batches or (self.kind is Together and isinstance(error, BrokenError))
        for dataset in self.datasets:
            dataset.raises.clear()
        again = self.on_ranks(
            lambda pair: next(iter(pair[0])) if pair[1] is None else pair[1],
            list(zip(self.loaders, batches, strict=True)),
        )
        self.take(again)


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
        options: Any = {"batch_size": size, "device_mesh": mesh, "shuffle": shuffle, "seed": 3}
        loaders: list[DataLoader[Any]] = []
        loops: list[Iterator[Any]] = []
        for rank in range(ranks):
            with use_rank(rank):
                loader: DataLoader[Any] = DataLoader(rows, max_tokens=budget, drop_last=False, **options)
                if state is not None:
                    loader.load_state_dict(state)
                loaders.append(loader)
                loops.append(iter(loader))
        for _ in range(draw.randint(1, 3)):
            left, step = len(loaders[0]), []
            for rank, loop in enumerate(loops):
                with use_rank(rank):
                    (pack,) = next(loop)
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
            taken, rows = draw.randint(1, 4), []
            for rank in range(ranks):
                with use_rank(rank):
                    loader: DataLoader[Any] = DataLoader(
                        mixture, batch_size=size, device_mesh=mesh, shuffle=shuffle, seed=seed, drop_last=False
                    )
                    if state is not None:
                        loader.load_state_dict(state)
                    assert (loader.epoch, loader.position) == (epoch, step)
                    rows += [
                        row
                        for batch in islice(loader, taken)
                        for row, valid in zip(batch, batch.valid, strict=True)
                        if valid
                    ]
            told.update(rows)
            mine.update(name for name, _ in rows)
            step += len(rows)
            state = json.loads(json.dumps(loader.state_dict()))
        assert dict(mine) == {name: share for name, share in zip(lengths, mixture.shares, strict=True) if share}
    for name, length in lengths.items():
        counts = [told[name, row] for row in range(length)]
        assert max(counts) - min(counts) <= 1, (seed, name, counts)


def test_mixtures_of_changing_runs_have_their_shares() -> None:
    for seed in range(40):
        mixed_run(seed)
