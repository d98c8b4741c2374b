"""Datasets that can only be gone through, with and without a state."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from twinkle_data import Batch


class Counting(IterableDataset[int]):
    """A torch iterable dataset without a state."""

    def __init__(self, length: int = 22) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)


class Stateful(Counting):
    """One with a state, which like Hugging Face's begins every pass where the last loaded state says."""

    def __init__(self, length: int = 22) -> None:
        super().__init__(length)
        self.begin = self.at = 0

    def __iter__(self) -> Iterator[int]:
        self.at = self.begin
        while self.at < self.length:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = self.at = state["at"]


def rows_of(batches: list[Batch[Any]]) -> list[Any]:
    return [sample for batch in batches for sample, valid in zip(batch, batch.valid, strict=True) if valid]
