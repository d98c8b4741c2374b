"""The question of a process that waits: which nodes of the cluster are lost."""

from __future__ import annotations

from typing import Protocol


class LostNodes(Protocol):
    """The lost nodes, and why."""

    def any_lost(self) -> bool:
        """Whether the head or a node is lost."""

    def lost(self, name: str) -> str | None:
        """The reason why the head or a node is lost; None if it is not lost.

        Args:
            name: Ray's id of the node, or `places.HEAD`.
        """
