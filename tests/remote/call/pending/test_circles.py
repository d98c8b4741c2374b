"""A law: a task is in a circle exactly if it and what it waits for can never go on, by a search of all orders."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.call.pending.circles import _circle
from twinkle_remote.protocol.waiting import Wait, WaitedWorker, WorkerWaits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_Tasks = dict[tuple[int, str], Wait]


class Groups:
    """A backend whose tasks wait as they are told: those with a turn, and those of event loops."""

    def __init__(self, waits: Mapping[tuple[int, str], Wait]) -> None:
        self._waits = waits

    def group(self, name: str) -> Groups:
        return self

    def waits(self, ranks: Sequence[int]) -> Mapping[int, WorkerWaits]:
        tasks = {rank: {k: self._waits.get((rank, k)) for k in KEYS if k} for rank in ranks}
        return {rank: WorkerWaits(self._waits.get((rank, "")), tasks=tasks[rank]) for rank in ranks}


KEYS = ("", "one", "two")


def random_waits(rng: random.Random) -> _Tasks:
    size = rng.randint(1, 4)
    nodes = [(rank, key) for rank in range(size) for key in rng.sample(KEYS, rng.randint(1, 2))]

    def way() -> tuple[WaitedWorker, ...]:
        chosen = [rng.choice(nodes) for _ in range(rng.choice([0, 1, 1, 2]))]
        return tuple(WaitedWorker("g", rank, "call", key) for rank, key in chosen)

    def ways() -> tuple[tuple[WaitedWorker, ...], ...]:
        return tuple(way() for _ in range(rng.choice([1, 1, 1, 2])))

    return {node: Wait(index, "task", ways()) for index, node in enumerate(nodes) if rng.random() < 0.85}


def node_of(one: WaitedWorker) -> tuple[int, str]:
    return one.rank, one.key


def never_goes_on(waits: _Tasks) -> set[tuple[int, str]]:
    """Let go on who can, one after the other; a task that went on waits for nobody any more."""
    left = dict(waits)
    while True:
        able = [
            node
            for node, wait in left.items()
            if any(all(node_of(one) not in left for one in way) for way in wait.ways)
        ]
        if not able:
            return set(left)
        del left[able[0]]


def reaches_itself(node: tuple[int, str], waits: _Tasks, stuck: set[tuple[int, str]]) -> bool:
    found: set[tuple[int, str]] = set()
    left = [node]
    while left:
        after = {node_of(one) for way in waits[left.pop()].ways for one in way} & stuck - found
        found |= after
        left += after
    return node in found


def test_a_circle_is_what_can_never_go_on() -> None:
    circles = 0
    for seed in range(2000):
        waits = random_waits(random.Random(seed))
        stuck = never_goes_on(waits)
        for node, wait in waits.items():
            found = _circle(cast("Any", Groups(waits)), ("g", *node), wait)
            is_circle = node in stuck and reaches_itself(node, waits, stuck)
            assert (found is not None) == is_circle, (seed, node)
            if found is not None:
                circles += 1
                nodes = [(rank, key) for _, rank, key in found]
                assert nodes[0] == node and set(nodes) <= stuck
                for one, following in zip(nodes, [*nodes[1:], node], strict=True):
                    assert following in {node_of(other) for way in waits[one].ways for other in way}
    assert circles > 500


def test_a_task_that_has_not_begun_waits_for_the_turn_then_for_the_loop() -> None:
    turn, loop, own = (Wait(number, "task", ()) for number in range(3))
    waits = WorkerWaits(turn, None, {"goes on": None, "waits": own}, ("ended",))
    assert [waits.of(key) for key in ("", "new", "goes on", "waits", "ended")] == [turn, turn, None, own, None]
    held = waits._replace(turn=None, loop=loop)
    assert [held.of(key) for key in ("", "new", "goes on", "waits", "ended")] == [None, loop, loop, loop, None]
