"""The nodes of a cluster as blocks of ranks."""

from __future__ import annotations

from bisect import bisect_right

from .rules.checks import at_least_one, whole_number
from .rules.messages import listed_or_digest, preview

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Nodes:
    """Consecutive blocks of ranks from rank 0 on, given by one size for equal nodes or by all sizes."""

    __slots__ = ("_starts", "ranks_per_node", "sizes")

    ranks_per_node: int | None
    """Ranks on each node; None where nodes are unequal."""
    sizes: tuple[int, ...]
    """Ranks on each node; empty where nodes are equal."""
    _starts: tuple[int, ...]

    def __init__(self, ranks_per_node: int | None = None, sizes: Iterable[int] = ()) -> None:
        held = tuple([whole_number("the number of ranks on a node", size) for size in sizes])
        if (ranks_per_node is None) == (not held):
            raise ValueError("nodes need either ranks_per_node= or the sizes of all nodes")
        if held and min(held) < 1:
            raise ValueError(f"the number of ranks on a node={min(held)} must be at least 1")
        per_node = None if ranks_per_node is None else at_least_one("ranks_per_node", ranks_per_node)
        if len(set(held)) == 1:
            # Equal nodes given by all sizes equal those given by one size.
            per_node, held = held[0], ()
        starts = [0]
        for size in held:
            starts.append(starts[-1] + size)
        object.__setattr__(self, "ranks_per_node", per_node)
        object.__setattr__(self, "sizes", held)
        object.__setattr__(self, "_starts", tuple(starts))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"nodes do not change: {name} cannot be set")

    def of(self, rank: int) -> int:
        """Return the node of a rank, in [0, number of nodes - 1]."""
        rank = whole_number("rank", rank)
        if rank < 0:
            raise ValueError(f"rank={rank} is on no node: ranks are at least 0")
        if self.ranks_per_node is not None:
            return rank // self.ranks_per_node
        if rank >= self._starts[-1]:
            raise ValueError(f"rank={rank} is on no node: the nodes have ({preview(self.sizes)}) ranks")
        return bisect_right(self._starts, rank) - 1

    def __reduce__(self) -> tuple[object, ...]:
        return Nodes.from_json, (self.to_json(),)

    def spanned(self, ranks: Iterable[int]) -> int:
        """Return how many nodes some ranks span."""
        return len({self.of(rank) for rank in ranks})

    def to_json(self) -> int | list[int]:
        """Return the ranks per node, or the sizes of unequal nodes."""
        return list(self.sizes) if self.ranks_per_node is None else self.ranks_per_node

    @classmethod
    def from_json(cls, value: int | list[int]) -> Nodes:
        """Read what `to_json` returned."""
        return cls(sizes=value) if isinstance(value, list) else cls(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Nodes):
            return NotImplemented
        return (self.ranks_per_node, self.sizes) == (other.ranks_per_node, other.sizes)

    def __hash__(self) -> int:
        return hash((self.ranks_per_node, self.sizes))

    def __repr__(self) -> str:
        if self.ranks_per_node is None:
            return f"Nodes(sizes=({listed_or_digest(self.sizes)}))"
        return f"Nodes(ranks_per_node={self.ranks_per_node})"
