"""Lives of a loader: any dataset, stopped anywhere and gone on with elsewhere, gives what a plain loop gives.

`TWINKLE_LIVES=2000` runs as many of them.
"""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.data.kinds_of_datasets import DATASETS, value_of

from twinkle_data import DataLoader, StateMismatchError
from twinkle_data.order import Permutation
from twinkle_mesh import DeviceMesh, use_rank

if TYPE_CHECKING:
    from collections.abc import Iterator

LIVES = int(os.environ.get("TWINKLE_LIVES", "80"))
STREAMS = ("stream", "chain", "generator", "closure", "hf stream", "hf mapped stream", "hf generator")
# Of a dataset of the program's own, and of a stream, the fingerprint sees no rows.
OWN = ("object", "object of arrays", "object of a frame", "nested objects", "concat", "column of an object")
UNSEEN = (*STREAMS, *OWN)


class Life:
    """One dataset and its loaders, one for each data rank, which take their steps together."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.kind = draw.choice(sorted(DATASETS))
        self.rows = draw.sample(range(100), draw.randint(8, 24))
        self.shuffle = self.kind not in STREAMS and draw.random() < 0.6
        self.seed = draw.randrange(100)
        self.drop_last = draw.random() < 0.3
        self.loaders: list[DataLoader[Any]] = []
        self.loops: list[Iterator[Any]] = []

    def expected(self, epoch: int) -> list[int]:
        """What a plain loop over an epoch gives."""
        if not self.shuffle:
            return self.rows
        return [self.rows[place] for place in Permutation(len(self.rows), self.seed, epoch).block(0, len(self.rows))]

    def begin(self, rows: list[int], state: dict[str, Any] | None) -> None:
        """Start, or go on from a state, with other ranks and another batch size."""
        ranks = self.draw.choice([1, 1, 2, 3])
        batch_size = ranks * self.draw.randint(1, 2 if ranks == 3 else 3)
        mesh = DeviceMesh.from_sizes(dp_size=ranks, tp_size=self.draw.choice([1, 2]))
        self.loaders, self.loops = [], []
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
                    drop_last=self.drop_last,
                    num_workers=int(self.draw.random() < 0.02),
                )
                if state is not None:
                    loader.load_state_dict(state)
                self.loaders.append(loader)

    def step(self, *, anew: bool) -> list[int] | None:
        """The rows of the next global batch; None at the end of an epoch.

        Args:
            anew: A new loop goes on where the old one stopped.
        """
        batches = []
        if not self.loops or anew:
            self.loops = []
            for rank, loader in zip(self.mesh.collect_ranks, self.loaders, strict=True):
                with use_rank(rank):
                    self.loops.append(iter(loader))
        for rank, loop in zip(self.mesh.collect_ranks, self.loops, strict=True):
            with use_rank(rank):
                batches.append(next(loop, None))
        if any(batch is None for batch in batches):
            assert batches == [None] * len(batches), "the epoch ends on all ranks at once"
            self.loops = []
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
        saved: dict[str, Any] = json.loads(states[0])
        return saved


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
        while True:
            over = life.loaders[0].epoch > epoch
            if over and not life.loops:
                break  # it was saved after the last batch
            rows = life.step(anew=not over and draw.random() < 0.2)
            if rows is None:
                break
            told += rows
            if draw.random() < 0.15:
                resume(life)
        expected, saying = life.expected(epoch), f"life {number}: {life.kind}, epoch {epoch}"
        if life.drop_last:
            assert len(set(told)) == len(told) > len(life.rows) - 9, saying
            assert told == expected[: len(told)], saying
        else:
            assert told == expected, saying
        if draw.random() < 0.5:
            resume(life)


def resume(life: Life) -> None:
    """Go on elsewhere: with an equal dataset, after one with another row was refused where that can be seen."""
    state = life.state()
    if life.kind not in UNSEEN:
        with pytest.raises(StateMismatchError):
            life.begin([777, *life.rows[1:]], state)
    life.begin(life.rows, state)
