"""What a stream keeps in its state comes back from JSON as it was."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from twinkle_data import DataLoader
from twinkle_data.json_values import from_json_values, to_json_values
from twinkle_data.sources.fingerprint import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAVES: list[Any] = [None, True, 3, -2.5, "a", "$twinkle", b"\x00\xff", bytearray(b"x"), np.int64(4), np.float32(0.5)]
LEAVES += [np.arange(3, dtype=np.int8), np.zeros((0, 2)), np.array([True]), torch.arange(4), torch.ones(2, 1)]
LEAVES += [torch.tensor(5), torch.tensor([1.5], dtype=torch.bfloat16), {1, 2}, frozenset("b"), (), [], {}]
KEYS: list[Any] = ["a", "b", "$twinkle", 0, 1, -1, True, None, (0, 1), 2.5]


def value(draw: Random, depth: int) -> Any:
    if not depth or draw.random() < 0.4:
        return draw.choice(LEAVES)
    parts = [value(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    keys = draw.sample(KEYS[:2] if draw.random() < 0.5 else KEYS, min(len(parts), 2))
    return draw.choice([parts, tuple(parts), dict(zip(keys, parts, strict=False))])


def kinds(one: Any) -> Any:
    inner = list(one.values()) if isinstance(one, dict) else one if isinstance(one, (list, tuple)) else []
    return type(one), getattr(one, "dtype", None), [kinds(part) for part in inner]


def test_values_come_back_from_json() -> None:
    for seed in range(400):
        one = value(Random(seed), 4)
        again = from_json_values(json.loads(json.dumps(to_json_values(one))))
        assert kinds(again) == kinds(one)
        assert digest(again) == digest(one)


class Offsets:
    """Keeps the number of rows that it gave of each shard, by its number."""

    def __init__(self) -> None:
        self.offsets = {0: 0, 1: 0}
        self.next = torch.tensor(0)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self.offsets.get(0, 0) + self.offsets.get(1, 0) < 12:
            shard = int(self.next)
            self.offsets[shard] = self.offsets.get(shard, 0) + 1
            self.next = 1 - self.next
            yield shard, self.offsets[shard] - 1
        self.offsets = {}

    def state_dict(self) -> dict[str, Any]:
        return {"offsets": self.offsets, "next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.offsets, self.next = state["offsets"], state["next"]


def test_a_state_with_numbers_as_keys_resumes() -> None:
    whole = [row for batch in DataLoader(Offsets(), batch_size=3) for row in batch]
    for stop in (1, 2, 3):
        loader: DataLoader[Any] = DataLoader(Offsets(), batch_size=3)
        told = [row for _ in range(stop) for row in next(loader)]
        state = json.loads(json.dumps(loader.state_dict()))
        again: DataLoader[Any] = DataLoader(Offsets(), batch_size=1)
        again.load_state_dict(state)
        assert told + [row for batch in again for row in batch][: 12 - len(told)] == whole
