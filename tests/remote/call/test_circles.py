"""A law: a task is in a circle exactly if it and what it waits for can never go on, by a search of all orders."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.call.circles import _circle
from twinkle_remote.protocol.waiting import Wait, WaitedWorker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Groups:
    """A backend whose workers wait as they are told."""

    def __init__(self, waits: Mapping[int, Wait]) -> None:
        self._waits = waits

    def group(self, name: str) -> Groups:
        return self

    def waits(self, ranks: Sequence[int]) -> Mapping[int, Wait]:
        return {rank: self._waits[rank] for rank in ranks if rank in self._waits}


def random_waits(rng: random.Random) -> dict[int, Wait]:
    size = rng.randint(1, 6)

    def way() -> tuple[WaitedWorker, ...]:
        return tuple(WaitedWorker("g", rng.randrange(size), "call") for _ in range(rng.choice([0, 1, 1, 2])))

    def ways() -> tuple[tuple[WaitedWorker, ...], ...]:
        return tuple(way() for _ in range(rng.choice([1, 1, 1, 2])))

    return {rank: Wait(rank, "task", ways()) for rank in range(size) if rng.random() < 0.85}


def never_goes_on(waits: Mapping[int, Wait]) -> set[int]:
    """Let go on who can, one after the other; a worker that went on waits for nobody any more."""
    left = dict(waits)
    while True:
        able = [
            rank for rank, wait in left.items() if any(all(one.rank not in left for one in way) for way in wait.ways)
        ]
        if not able:
            return set(left)
        del left[able[0]]


def reaches_itself(rank: int, waits: Mapping[int, Wait], stuck: set[int]) -> bool:
    found: set[int] = set()
    left = [rank]
    while left:
        after = {one.rank for way in waits[left.pop()].ways for one in way} & stuck - found
        found |= after
        left += after
    return rank in found


def test_a_circle_is_what_can_never_go_on() -> None:
    circles = 0
    for seed in range(2000):
        waits = random_waits(random.Random(seed))
        stuck = never_goes_on(waits)
        for rank, wait in waits.items():
            found = _circle(cast("Any", Groups(waits)), ("g", rank), wait)
            is_circle = rank in stuck and reaches_itself(rank, waits, stuck)
            assert (found is not None) == is_circle, (seed, rank)
            if found is not None:
                circles += 1
                nodes = [node for _, node in found]
                assert nodes[0] == rank and set(nodes) <= stuck
                for node, following in zip(nodes, [*nodes[1:], rank], strict=True):
                    assert following in {one.rank for way in waits[node].ways for one in way}
    assert circles > 500
