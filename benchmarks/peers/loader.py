"""The loader against torch's, in one process: the cost of a sample of a map-style dataset.

Rows of 8 token ids that are kept as Python lists, so that reading a sample is cheap and the loaders' own cost shows;
shuffled batches of 64, collate_fn=list on both sides. The figure is the processor's time for a sample.

Samples that draw take one number of numpy. On both sides a sample's draws are a function of its index: in ours by
`sample_seeds`, in torch's by a call of `np.random.seed` in `__getitem__`, which is what a user writes there. Seeding
and drawing are part of both figures, so their difference is what the loader adds.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rows import Row, cpu_seconds, main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLES = 16_384


class Plain:
    """Samples that draw nothing."""

    def __init__(self) -> None:
        self.rows = [[row + column for column in range(8)] for row in range(SAMPLES)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> list[int]:
        return self.rows[index]


class Draws(Plain):
    """Samples that draw from numpy's global generator.

    Args:
        seeds: Seed it by hand.
    """

    def __init__(self, *, seeds: bool) -> None:
        super().__init__()
        self.seeds = seeds

    def __getitem__(self, index: int) -> list[int]:
        import numpy as np

        if self.seeds:
            np.random.seed(index * 0x9E3779B9 & 0xFFFFFFFF)
        return [*self.rows[index], np.random.randint(8)]


def _per_sample(loader: Any) -> Callable[[], float]:
    def one_round() -> float:
        def epoch() -> None:
            for _ in loader:
                pass

        return cpu_seconds(epoch) / SAMPLES * 1e6

    return one_round


@contextmanager
def ours(dataset: Callable[[], Any], **options: Any) -> Iterator[Callable[[], float]]:
    from twinkle_data import DataLoader

    yield _per_sample(DataLoader(dataset(), batch_size=64, shuffle=True, collate_fn=list, **options))


@contextmanager
def torchs(dataset: Callable[[], Any]) -> Iterator[Callable[[], float]]:
    from torch.utils.data import DataLoader

    yield _per_sample(DataLoader(dataset(), batch_size=64, shuffle=True, drop_last=True, collate_fn=list))


SIDES = {
    "ours": partial(ours, Plain),
    "ours, False": partial(ours, Plain, sample_seeds=False),
    "torch": partial(torchs, Plain),
    "ours, all, draws": partial(ours, partial(Draws, seeds=False)),
    "torch, draws": partial(torchs, partial(Draws, seeds=True)),
}
NOTHING, DRAWS = "a sample that draws nothing", "a sample that draws from numpy"
ROWS = [
    Row(name, "torch", ours, theirs, "us", aim, rounds=15, by_hand="torch's DataLoader")
    for name, ours, theirs, aim in (
        (NOTHING, "ours", "torch", None),
        (f"{NOTHING}, sample_seeds=False", "ours, False", "torch", 1.5),
        (DRAWS, "ours, all, draws", "torch, draws", None),
    )
]

if __name__ == "__main__":
    main(SIDES, ROWS)
