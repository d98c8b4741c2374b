"""Operations that each rank of a process group has entered, in the group's store: they show how ranks differ."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch.distributed.distributed_c10d import ProcessGroup, Store

KEPT = 4  # operations of each rank; the source of a broadcast may be some ahead of the others


class OperationLog:
    """The latest operations that this rank has entered in one group, and those of its peers.

    Args:
        store: The group's part of the default store.
        rank: Of this process in the group.
        size: Number of the group's ranks.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._numbers = count(1)
        self._own: deque[tuple[int, str]] = deque(maxlen=KEPT)

    def enter(self, text: str) -> int:
        """Note an operation; its number among those of the group, which is the same on every rank.

        Args:
            text: What must agree on all ranks; one line.
        """
        number = next(self._numbers)
        self._own.append((number, text))
        return number

    def publish(self) -> None:
        """Write it into the store; the store sends no answer, so that this costs a few microseconds.

        A rank must do so before it enters: Gloo ends the process of a rank that receives more than it expects.
        """
        with suppress(RuntimeError, dist.DistError):  # what has no store has no comparison, and may go on
            self._store.set(f"entered/{self._rank}", "\n".join(f"{number} {text}" for number, text in self._own))

    def give_up(self) -> None:
        """Tell the others that this rank's operation has failed here."""
        self.publish()
        self._store.set(f"down/{self._rank}", str(self._own[-1][0]))

    def entered(self) -> dict[int, dict[int, str]]:
        """For each rank, the latest operations that it has entered by number."""
        return {rank: dict(_parsed(text)) for rank, text in self._read("entered").items()}

    def given_up(self) -> set[int]:
        """The ranks that have reported a failed operation, of late."""
        oldest = self._own[-1][0] - KEPT
        return {rank for rank, text in self._read("down").items() if text and int(text) > oldest}

    def _read(self, name: str) -> dict[int, str]:
        keys = [f"{name}/{rank}" for rank in range(self._size)]
        known = self._store.check(keys)  # one request where all are there
        there = [known or self._store.check([key]) for key in keys]
        return {
            rank: bytes(self._store.get(key)).decode() if is_there else ""
            for rank, (key, is_there) in enumerate(zip(keys, there, strict=True))
        }


def _parsed(text: str) -> Iterable[tuple[int, str]]:
    for line in text.splitlines():
        number, _, operation = line.partition(" ")
        yield int(number), operation


def first_difference(entered: Mapping[int, Mapping[int, str]]) -> tuple[int, dict[str, list[int]]] | None:
    """The first operation that some ranks entered otherwise than others, and which ranks entered what.

    Args:
        entered: For each rank, operations by number.
    """
    for number in sorted({number for own in entered.values() for number in own}):
        kinds: dict[str, list[int]] = {}
        for rank, own in entered.items():
            if number in own:
                kinds.setdefault(own[number], []).append(rank)
        if len(kinds) > 1:
            return number, kinds
    return None


LOGS: WeakKeyDictionary[ProcessGroup, OperationLog] = WeakKeyDictionary()  # all collectives of a group share one
