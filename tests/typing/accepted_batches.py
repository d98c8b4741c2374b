"""The types of a loader's batches; checked, never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_type

from twinkle_data import Batch, DataLoader, Mixture
from twinkle_remote import on, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Sample:
    text: str


class Samples:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Sample:
        return Sample("a")


class Stream:
    def __iter__(self) -> Iterator[float]:
        yield 1.0


@remote_class()
class Actor:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def score(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]


def lengths(batch: Batch[str]) -> list[int]:
    return [len(text) for text in batch]


def program() -> None:
    texts = ["a", "bb"]
    actor = on("actor").create(Actor)
    for batch in DataLoader(texts, batch_size=2, shuffle=True, drop_last=False):
        assert_type(batch, Batch[str])
        assert_type(batch[0], str)
        assert_type(batch[:1], Batch[str])
        assert_type(batch.indices, list[int])
        assert_type(actor.score([*batch]), list[int])
    assert_type(next(iter(DataLoader(Samples(), batch_size=1, num_workers=2, pin_memory=True))), Batch[Sample])
    assert_type(next(iter(DataLoader(Samples, batch_size=1))), Batch[Sample])
    assert_type(next(iter(DataLoader(lambda: [1, 2], batch_size=1))), Batch[int])
    assert_type(next(iter(DataLoader(Stream(), batch_size=1))), Batch[Any])
    assert_type(next(iter(DataLoader({"text": texts, "score": [1, 2]}, batch_size=1))), Batch[Any])
    assert_type(next(iter(DataLoader(Mixture({"a": texts}), batch_size=1))), Batch[Any])
    assert_type(next(iter(DataLoader(texts, batch_size=1, collate_fn=lengths))), list[int])
    assert_type(next(iter(DataLoader(texts, batch_size=1, remote_group="data"))), Batch[str])
    assert_type(next(iter(DataLoader(Samples(), batch_size=1, max_tokens=3))), Batch[Any])
