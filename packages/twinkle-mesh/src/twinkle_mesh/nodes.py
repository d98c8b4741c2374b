"""Which ranks share a node."""

from __future__ import annotations


class Nodes:
    """Consecutive blocks of ranks, from rank 0 on: equal ones by their size, unequal ones one by one."""

    def to_json(self) -> object:
        """Return the nodes as a JSON value."""
        return None

    @classmethod
    def from_json(cls, value: object) -> Nodes:
        """Read what `to_json` returned."""
        return cls()
