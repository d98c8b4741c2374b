"""The process groups that collectives of this process opened, and the collectives that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Iterable


class OpenedGroups:
    """Destroys a group once its opener has closed and no other collective uses it."""

    def __init__(self) -> None:
        self._used: WeakKeyDictionary[object, set[ProcessGroup]] = WeakKeyDictionary()
        self._closing: list[ProcessGroup] = []

    def use(self, user: object, groups: Iterable[ProcessGroup]) -> None:
        """Record that a collective uses groups and the default group until it closes."""
        world = dist.group.WORLD
        self._used[user] = {*groups, *([] if world is None else [world])}

    def leave(self, user: object) -> None:
        """Remove a user that opened nothing; the groups stay."""
        self._used.pop(user, None)

    def close(self, user: object, opened: Iterable[ProcessGroup]) -> None:
        """Remove a user; a group that it opened is destroyed when no other collective uses it.

        Args:
            user: The collective.
            opened: The groups that it opened, in that order; the default group, if it is one of them, is first.
        """
        self._used.pop(user, None)
        self._closing.extend(opened)
        if dist.group.WORLD is None:  # the program has destroyed all of them
            self._closing.clear()
        used = set[ProcessGroup]().union(*self._used.values())
        for group in reversed([group for group in self._closing if group not in used]):
            self._closing.remove(group)
            if group is dist.group.WORLD:
                self._closing.clear()
                dist.destroy_process_group()
                return
            dist.destroy_process_group(group)


OPENED = OpenedGroups()
