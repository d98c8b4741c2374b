"""Lives of a loader on a group: left and gone on with at any step, on other ranks, it gives what a plain loop gives."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from twinkle_data import DataLoader, Mixture
from twinkle_data.order import Permutation
from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Rows:
    """Numbers that the program's code reads."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        return self.rows[index]


class Stream:
    """Numbers from the start only, without a state."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "object": Rows,
    "built on the workers": lambda rows: lambda: Rows(rows),
    "mixture of one": lambda rows: Mixture({"all": rows}),
    "stream": Stream,
}


def check_group_life(number: int, group: str, workers: int) -> None:
    """Draw a dataset, and loaders over it on a group of this session, and compare two epochs with a plain loop.

    Args:
        number: The seed of all that is drawn.
        group: The name of the group.
        workers: Its workers, a power of 2.
    """
    draw = random.Random(number)
    kind, rows = draw.choice(sorted(KINDS)), draw.sample(range(1000), draw.randint(9, 40))
    shuffle = kind not in ("stream", "mixture of one") and draw.random() < 0.6
    dataset, state, epoch, told = KINDS[kind](rows), None, 0, []
    loader: DataLoader[Any]
    while epoch < 2:
        if state is None or draw.random() < 0.6:  # otherwise the loader goes on where its loop was left
            ranks = draw.choice([size for size in (1, 2, 4) if workers % size == 0])
            mesh = DeviceMesh.from_sizes(dp_size=ranks, tp_size=workers // ranks)
            options: Any = {"batch_size": ranks * draw.randint(1, 3), "shuffle": shuffle, "seed": number}
            loader = DataLoader(
                dataset,
                device_mesh=None if ranks == 1 and draw.random() < 0.5 else mesh,
                remote_group=group,
                drop_last=False,
                prefetch_factor=draw.choice([None, 1, 3]),
                **options,
            )
            if state is not None:
                loader.load_state_dict(state)
        for batch in loader:
            told += [row for row, valid in zip(batch, batch.valid, strict=True) if valid]
            assert loader.info is not None
            assert loader.info.indices == batch.indices
            if draw.random() < 0.3:
                break
        state = json.loads(json.dumps(loader.state_dict()))
        here: DataLoader[Any] = DataLoader(dataset, drop_last=False, **options)
        here.load_state_dict(state)
        assert here.state_dict() == state, "a loader of the driver has the same states"
        if loader.epoch > epoch:
            order = Permutation(len(rows), number, epoch).block(0, len(rows)) if shuffle else range(len(rows))
            if kind == "mixture of one":
                assert sorted(told) == sorted(rows), f"life {number}: {kind}, epoch {epoch}"
            else:
                assert told == [rows[place] for place in order], f"life {number}: {kind}, epoch {epoch}"
            epoch, told = epoch + 1, []
