"""Lives of a loader: any dataset, stopped anywhere and gone on with elsewhere, gives what a plain loop gives.

`TWINKLE_LIVES=2000` runs as many of them.
"""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.data.kinds_of_datasets import DATASETS, value_of

from twinkle_data import Batch, DataLoader, Permutation, StateMismatchError
from twinkle_mesh import DeviceMesh, use_rank

if TYPE_CHECKING:
    from twinkle_data.order.tails import Tail

LIVES = int(os.environ.get("TWINKLE_LIVES", "80"))
# Streams that are read from their start only can be saved between epochs alone.
UNRESUMABLE = ("stream", "chain", "generator", "closure")
STREAMS = (*UNRESUMABLE, "hf stream", "hf mapped stream", "hf generator", "stream of shards")
SHARDS = ("shards", "stream of shards")


class Life:
    """One dataset and its loaders, one for each data rank, which take their steps together."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.kind = draw.choice(sorted(DATASETS))
        self.rows = draw.sample(range(100), draw.randint(8, 24))
        self.shuffle = self.kind not in STREAMS and draw.random() < 0.6
        self.shuffle |= self.kind in SHARDS and draw.random() < 0.6
        self.seed = draw.randrange(100)
        self.tail: Tail = draw.choice(["short", "pad", "drop"])
        self.epoch = 0
        self.loaders: list[DataLoader[Any]] = []

    def expected(self, epoch: int) -> list[int] | None:
        """What a plain loop over an epoch gives; None where the order is known only as a set."""
        if not self.shuffle:
            return self.rows
        if self.kind in SHARDS:
            return None
        return [self.rows[place] for place in Permutation(len(self.rows), self.seed, epoch).block(0, len(self.rows))]

    def begin(self, rows: list[int], state: dict[str, Any] | None) -> None:
        """Start, or go on from a state, with other ranks and another batch size."""
        ranks = self.draw.choice([1, 1, 2, 3])
        batch_size = ranks * self.draw.randint(1, 2 if ranks == 3 else 3)
        mesh = DeviceMesh.from_sizes(dp_size=ranks, tp_size=self.draw.choice([1, 2]))
        self.loaders = []
        self.mesh = mesh
        for rank in mesh.collect_ranks:
            with use_rank(rank):
                dataset: Any = DATASETS[self.kind](list(rows))
                loader: DataLoader[Any] = DataLoader(
                    dataset,
                    batch_size=batch_size,
                    device_mesh=mesh,
                    shuffle=self.shuffle,
                    seed=self.seed,
                    tail=self.tail,
                    num_workers=int(self.draw.random() < 0.02),
                )
                if state is not None:
                    loader.load_state_dict(state)
                self.loaders.append(loader)

    def step(self) -> list[int] | None:
        """The rows of the next global batch; None at the end of an epoch."""
        batches = []
        for rank, loader in zip(self.mesh.collect_ranks, self.loaders, strict=True):
            with use_rank(rank):
                batches.append(next(loader, None))
        if any(batch is None for batch in batches):
            assert batches == [None] * len(batches), "the epoch ends on all ranks at once"
            return None
        return [
            value_of(row)
            for batch in batches
            if batch is not None
            for row, valid in zip(batch, batch.valid, strict=True)
            if valid
        ]

    def state(self) -> dict[str, Any]:
        """The state, the same on all ranks."""
        states = [json.dumps(loader.state_dict()) for loader in self.loaders]
        assert states == states[:1] * len(states)
        for loader in self.loaders:
            loader.close()
        saved: dict[str, Any] = json.loads(states[0])
        return saved


# Other tests may have run polars in this process; the module of these datasets names it, and they only index series.
@pytest.mark.filterwarnings("ignore:.* uses polars:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("part", range(10))
@pytest.mark.slow
def test_a_life_gives_what_a_plain_loop_gives(part: int) -> None:
    for number in range(part, LIVES, 10):
        check_life(number)


def check_life(number: int) -> None:
    draw = random.Random(number)
    life = Life(draw)
    life.begin(life.rows, None)
    for epoch in range(2):
        told: list[int] = []
        while (rows := life.step()) is not None:
            told += rows
            if draw.random() < 0.15 and life.kind not in UNRESUMABLE:
                resume(life)
                if life.loaders[0].epoch > epoch:  # it was saved after the last batch
                    break
        expected, saying = life.expected(epoch), f"life {number}: {life.kind}, epoch {epoch}"
        if life.tail == "drop":
            assert len(set(told)) == len(told) > len(life.rows) - 7, saying
            assert expected is None or told == expected[: len(told)], saying
        else:
            assert sorted(told) == sorted(life.rows), saying
            assert expected is None or told == expected, saying
        if draw.random() < 0.5:
            resume(life)


def resume(life: Life) -> None:
    """Go on elsewhere: with an equal dataset, after one with another row was refused."""
    state = life.state()
    place = life.draw.randrange(len(life.rows))
    with pytest.raises(StateMismatchError):
        life.begin([*life.rows[:place], 777, *life.rows[place + 1 :]], state)
    life.begin(life.rows, state)


def test_shuffled_shards_give_one_order_in_all_lives() -> None:
    for kind in SHARDS:
        orders = []
        for batch_size in (1, 4):
            rows = list(np.random.default_rng(1).permutation(20).tolist())
            loader: DataLoader[Batch[Any]] = DataLoader(
                DATASETS[kind](rows), batch_size=batch_size, shuffle=True, seed=2, tail="short"
            )
            orders.append([value_of(row) for batch in loader for row in batch])
        assert orders[0] == orders[1] != rows
