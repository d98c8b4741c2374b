"""Programs of a loader against a page of plain Python: loops, breaks, next, jumps, states, copies, errors, kills.

`TWINKLE_LIVES=2000` runs as many of them. Lives (test_lives.py) draw the dataset; programs draw what is done with it.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from twinkle_data import DataLoader, Packing, Permutation
from twinkle_mesh import DeviceMesh, use_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_data.order.tails import Tail

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
    tail: Tail
    epoch: int = 0
    position: int = 0
    owed: bool = False  # the end of an epoch was reached, and not told

    def order(self) -> list[int]:
        whole = Permutation(self.length, self.seed, self.epoch).block(0, self.length).tolist()
        return whole if self.shuffle else list(range(self.length))

    def rows(self) -> list[int]:
        return self.order()[self.position : self.position + self.batch_size]

    def steps_left(self) -> int:
        full, rest = divmod(self.length - self.position, self.batch_size)
        return full + (rest > 0 and self.tail != "drop")

    def at(self, epoch: int, position: int) -> Page:
        moved = self._replace(epoch=epoch, position=position, owed=False)
        return moved if moved.steps_left() else moved._replace(epoch=epoch + 1, position=0)

    def after_a_step(self) -> Page:
        moved = self.at(self.epoch, self.position + len(self.rows()))
        return moved._replace(owed=moved.epoch != self.epoch)


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
        for loader in self.loaders:
            loader.close()
        ranks = draw.choice([1, 1, 2, 3])
        batch_size = ranks * draw.randint(1, min(3, self.length // ranks))
        tail: Tail = draw.choice(["drop", "short", "pad"])
        self.workers = int(draw.random() < 0.05)
        self.mesh = DeviceMesh.from_sizes(dp_size=ranks, tp_size=draw.choice([1, 2]))
        options: Any = {"num_workers": self.workers, "prefetch_factor": draw.randint(1, 3), "retries": 0}
        options |= {"persistent_workers": draw.random() < 0.5, "collate_fn": draw.choice([None, list])}
        self.datasets = [self.kind(self.length) for _ in range(ranks)]

        def make(dataset: Rows) -> DataLoader[Any]:
            loader: DataLoader[Any] = DataLoader(
                dataset,
                batch_size=batch_size,
                device_mesh=self.mesh,
                shuffle=self.shuffle,
                seed=self.seed,
                tail=tail,
                **options,
            )
            if state is not None:
                loader.load_state_dict(state)
            return loader

        self.loaders = self.on_ranks(make, self.datasets)
        self.page = Page(self.length, self.seed, self.shuffle, batch_size, tail)
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
        for loader in self.loaders:
            assert (loader.epoch, loader.position) == (self.page.epoch, self.page.position)
            assert len(loader) == self.page.steps_left()

    def loop(self) -> None:
        """A `for` loop that is left after some steps, or at the end of its epoch."""
        self.page = self.page._replace(owed=False)
        epoch = self.page.epoch
        loops = self.on_ranks(iter)
        for _ in range(self.draw.randint(1, 4)):
            if self.page.epoch != epoch:
                assert self.on_ranks(lambda running: next(running, None), loops) == [None] * len(loops)
                self.page = self.page._replace(owed=False)
                break
            self.take(self.on_ranks(next, loops))

    def rest(self) -> None:
        """A `for` loop over the rest of the epoch."""
        self.page = self.page._replace(owed=False)
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
        self.page = page._replace(owed=False)

    def next(self) -> None:
        for _ in range(self.draw.randint(1, 4)):
            if self.page.owed:
                self.page = self.page._replace(owed=False)
                assert self.on_ranks(lambda loader: next(loader, None)) == [None] * len(self.loaders)
            else:
                self.take(self.on_ranks(next))

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
        elif not self.page.position:
            self.page = self.page._replace(owed=False)

    def copy(self) -> None:
        if not self.workers:
            pairs = pickle.loads(pickle.dumps(list(zip(self.loaders, self.datasets, strict=True))))
            self.loaders, self.datasets = [list(one) for one in zip(*pairs, strict=True)]
            self.page = self.page._replace(owed=False)

    def close(self) -> None:
        self.on_ranks(lambda loader: loader.close())

    def fail(self) -> None:
        """A sample raises, or Ctrl-C comes while it is read: the step is not counted, and comes again."""
        if self.workers or self.page.owed:
            return
        wrong = self.draw.choice(self.page.rows())
        error = self.draw.choice([BrokenError("broken"), KeyboardInterrupt()])
        for dataset in self.datasets:
            dataset.raises[wrong] = error

        def attempt(loader: DataLoader[Any]) -> Any:
            try:
                return next(loader)
            except (BrokenError, KeyboardInterrupt):
                assert (loader.epoch, loader.position) == (self.page.epoch, self.page.position)
                return None

        batches = self.on_ranks(attempt)
        # What is read together is read once more, row by row, unless Ctrl-C came.
        assert None in batches or (self.kind is Together and isinstance(error, BrokenError))
        for dataset in self.datasets:
            dataset.raises.clear()
        again = self.on_ranks(
            lambda pair: next(pair[0]) if pair[1] is None else pair[1],
            list(zip(self.loaders, batches, strict=True)),
        )
        self.take(again)

    def kill(self) -> None:
        """The loader processes die."""
        for loader in self.loaders:
            run = loader._progress._latest()
            processes: Any = [] if run is None else getattr(run.pipeline, "_started", [])
            for process in processes:
                with suppress(ProcessLookupError, TypeError):  # it has ended, or has not begun
                    os.kill(process.pid, signal.SIGKILL)


OPERATIONS = ("loop", "loop", "next", "next", "rest", "save", "load", "load", "jump", "copy", "close", "fail", "kill")


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
    finally:
        program.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("part", range(4))
def test_a_program_gives_what_a_page_gives(part: int) -> None:
    for seed in range(part, PROGRAMS, 4):
        run_program(seed)


def test_close_leaves_the_end_of_an_epoch_to_be_told() -> None:
    loader: DataLoader[Any] = DataLoader([1, 2], batch_size=1)
    assert [list(next(loader)), list(next(loader))] == [[1], [2]]
    loader.close()
    assert next(loader, None) is None
    assert list(next(loader)) == [1]


def packed_run(seed: int) -> None:
    """Packs on changing ranks, with changing budgets: each sample once, in the order's steps, never beyond a budget."""
    draw = random.Random(seed)
    length, shuffle = draw.randint(5, 40), draw.random() < 0.5
    tokens = [draw.randint(1, 20) for _ in range(length)]
    order = Permutation(length, 3, 0).block(0, length).tolist() if shuffle else list(range(length))
    told: list[int] = []
    state: dict[str, Any] | None = None
    while True:
        ranks, packs, budget = draw.choice([1, 2, 3]), draw.randint(1, 3), draw.randint(20, 50)
        mesh = DeviceMesh.from_sizes(dp_size=ranks)
        size = ranks * draw.randint(1, 6)
        tail: Tail = draw.choice(["short", "pad"])
        loaders: list[DataLoader[Any]] = []
        for rank in range(ranks):
            with use_rank(rank):
                loader: DataLoader[Any] = DataLoader(
                    list(range(length)),
                    batch_size=size,
                    device_mesh=mesh,
                    shuffle=shuffle,
                    seed=3,
                    tail=tail,
                    packing=Packing(tokens, budget, packs),
                )
                if state is not None:
                    loader.load_state_dict(state)
                loaders.append(loader)
        for _ in range(draw.randint(1, 3)):
            left, step = len(loaders[0]), []
            for rank, loader in enumerate(loaders):
                with use_rank(rank):
                    batch = next(loader)
                assert len(batch) == packs
                assert all(sum(tokens[row] for row in one) <= budget for one in batch)
                step += [row for one in batch for row, valid in zip(one, one.valid, strict=True) if valid]
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
