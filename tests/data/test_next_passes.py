"""Iterables with a state that draw or count their passes: the epochs are those of a plain loop, resumed or not."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from twinkle_data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 12
EPOCHS = 4


class Walk:
    """Goes back to its start at its end."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows, self.at = rows, 0

    def __iter__(self) -> Iterator[int]:
        order = self.order()
        while self.at < self.rows:
            self.at += 1
            yield order[self.at - 1]
        self.at = 0

    def order(self) -> list[int]:
        return list(range(self.rows))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Counting(Walk):
    """Counts its passes, and has another order in each."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.passes += 1

    def order(self) -> list[int]:
        found: list[int] = np.random.default_rng(self.passes).permutation(self.rows).tolist()
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.passes = state["at"], state["passes"]


class Drawing(Walk):
    """Draws the order of each pass from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.draws, self.drawn = np.random.default_rng(3), list(range(ROWS))

    def order(self) -> list[int]:
        if not self.at:
            self.drawn = self.draws.permutation(ROWS).tolist()
        return self.drawn

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "draws": self.draws.bit_generator.state, "drawn": list(self.drawn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.drawn = state["at"], list(state["drawn"])
        self.draws.bit_generator.state = state["draws"]


class Resuming(Drawing):
    """Begins anew in each pass, but for the first one after a state was loaded."""

    resumes = False

    def __iter__(self) -> Iterator[int]:
        self.at = self.at if self.resumes else 0
        order, self.resumes = self.order(), False
        while self.at < ROWS:
            self.at += 1
            yield order[self.at - 1]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumes = True


class Loaded(Walk):
    """Begins each pass at the last loaded state, as Hugging Face's streams do."""

    start = 0

    def __iter__(self) -> Iterator[int]:
        self.at = self.start
        while self.at < ROWS:
            self.at += 1
            yield self.at - 1

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = self.at = state["at"]


class Staying(Walk):
    """Stays at its end."""

    def __iter__(self) -> Iterator[int]:
        while self.at < ROWS:
            self.at += 1
            yield self.at - 1


class Again:
    """Begins again when it is asked after its end."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == ROWS:
            self.at = 0
            raise StopIteration
        self.at += 1
        return self.at - 1


class Restarting(Walk):
    """Holds such an iterator."""

    def __init__(self) -> None:
        self.walk = Again()

    def __iter__(self) -> Iterator[int]:
        return self.walk

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.walk.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.walk.at = state["at"]


class Live(Walk):
    """Gives out, and keeps, the dict that it counts in."""

    def __init__(self) -> None:
        self.place = {"at": 0}

    def __iter__(self) -> Iterator[int]:
        while self.place["at"] < ROWS:
            self.place["at"] += 1
            yield self.place["at"] - 1
        self.place["at"] = 0

    def state_dict(self) -> dict[str, Any]:
        return self.place

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state


@pytest.mark.parametrize("kind", [Walk, Counting, Drawing, Resuming, Loaded, Staying, Restarting, Live])
def test_epochs_are_those_of_a_plain_loop(kind: type[Walk]) -> None:
    plain = kind()
    expected = [row for _ in range(EPOCHS) for row in (range(ROWS) if kind is Staying else plain)]
    for seed in range(16):
        draw = random.Random(seed)
        told: list[int] = []
        state: dict[str, Any] | None = None
        while len(told) < len(expected):
            workers = int(seed == 0)
            loader: DataLoader[Any] = DataLoader(
                kind(), batch_size=draw.randint(1, 6), drop_last=False, num_workers=workers
            )
            if state is not None:
                loader.load_state_dict(state)
            loop: Iterator[Any] | None = None
            for _ in range(draw.randint(8 * workers + 1, 16)):
                if loop is None or draw.random() < 0.2:
                    loop = iter(loader)
                batch = next(loop, None)
                told += batch or ()
                loop = None if batch is None else loop
            state = json.loads(json.dumps(loader.state_dict()))
        assert told[: len(expected)] == expected


def test_an_older_state_goes_back_to_the_pass_behind_it() -> None:
    loader: DataLoader[Any] = DataLoader(Counting(), batch_size=4)
    states, passes = [], []
    for _ in range(EPOCHS):
        states.append(json.loads(json.dumps(loader.state_dict())))
        passes.append([row for batch in loader for row in batch])
    for epoch in (2, 0, 3, 1):
        loader.load_state_dict(states[epoch])
        assert [row for batch in loader for row in batch] == passes[epoch]
