"""Which process groups the collectives of this process have opened, and which of them still use one."""

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
        """Note that a collective uses groups, and the default one with them, until it closes."""
        world = dist.group.WORLD
        self._used[user] = {*groups, *([] if world is None else [world])}

    def leave(self, user: object) -> None:
        """Forget a user that opened nothing, without any effect on the groups."""
        self._used.pop(user, None)

    def close(self, user: object, opened: Iterable[ProcessGroup]) -> None:
        """Forget a user; destroy what it opened, at once or when its last other user closes.

        Args:
            user: The collective.
            opened: Groups in the order of their opening; the default one first where it is among them.
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
