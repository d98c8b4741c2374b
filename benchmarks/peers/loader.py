"""The loader against torch's, in one process: the cost of a sample of a map-style dataset.

Rows of 8 token ids that are kept as Python lists, so that reading a sample is cheap and the loaders' own cost shows;
shuffled batches of 64, collate_fn=list on both sides.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rows import Row, main, seconds

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


def _per_sample(loader: Any) -> Callable[[], float]:
    def one_round() -> float:
        def epoch() -> None:
            for _ in loader:
                pass

        return seconds(epoch) / SAMPLES * 1e6

    return one_round


def _ours(dataset: Any, **options: Any) -> Callable[[], float]:
    from twinkle_data import DataLoader

    return _per_sample(DataLoader(dataset, batch_size=64, shuffle=True, collate_fn=list, **options))


@contextmanager
def ours() -> Iterator[Callable[[], float]]:
    yield _ours(Plain())


@contextmanager
def ours_unseeded() -> Iterator[Callable[[], float]]:
    yield _ours(Plain(), sample_seeds=False)


@contextmanager
def torchs() -> Iterator[Callable[[], float]]:
    from torch.utils.data import DataLoader

    dataset: Any = Plain()
    yield _per_sample(DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True, collate_fn=list))


SIDES = {"ours": ours, "ours, sample_seeds=False": ours_unseeded, "torch": torchs}
TORCH = "torch's DataLoader"
ROWS = [
    Row("a sample that draws nothing", "torch", "ours", "torch", "us", 1.5, by_hand=TORCH),
    Row("the same with sample_seeds=False", "torch", "ours, sample_seeds=False", "torch", "us", 1.5, by_hand=TORCH),
]

if __name__ == "__main__":
    main(SIDES, ROWS)
