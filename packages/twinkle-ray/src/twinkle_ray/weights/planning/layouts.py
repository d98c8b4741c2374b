"""The specs of a side by tensor, where they are reported by rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_ray.weights.shards.box import Box
    from twinkle_ray.weights.shards.specs import RankSpecs, TensorSpec


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that name the same tensors in the same order.

    Attributes:
        ranks: The ranks, ascending.
        names: The tensors.
        rows: For each rank the specs of all tensors. A large side has a hundred thousand specs, which lie in memory
            by rank, so that a walk along the rows takes half the time of a walk by tensor.
    """

    ranks: Sequence[int]
    names: tuple[str, ...]
    rows: Sequence[RankSpecs]

    def agrees(self) -> bool:
        """Whether all its ranks give each tensor the same shape and dtype."""
        shapes, dtypes = [spec.shape for spec in self.rows[0]], [spec.dtype for spec in self.rows[0]]
        return all(
            [spec.shape for spec in row] == shapes and [spec.dtype for spec in row] == dtypes for row in self.rows[1:]
        )

    def column(self, position: int) -> Iterator[tuple[int, TensorSpec]]:
        """Each rank with its spec of the tensor at this position."""
        return ((rank, row[position]) for rank, row in zip(self.ranks, self.rows, strict=True))


def rank_groups(all_specs: Sequence[RankSpecs]) -> list[RankGroup]:
    """The groups of a side, by their first rank."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, rank_specs in enumerate(all_specs):
        groups.setdefault(tuple([spec.name for spec in rank_specs]), []).append(rank)
    return [RankGroup(ranks, names, [all_specs[rank] for rank in ranks]) for names, ranks in groups.items()]


class Layouts:
    """Numbers the layouts of a side's tensors: tensors with the same number have the same blocks on the same ranks.

    Args:
        all_specs: Specs of each rank.
    """

    def __init__(self, all_specs: Sequence[RankSpecs]) -> None:
        self._places: dict[str, list[tuple[RankGroup, int]]] = {}
        keys: dict[str, list[tuple[object, ...]]] = {}
        for number, group in enumerate(rank_groups(all_specs)):
            alike = zip(*[_first_alike(row) for row in group.rows], strict=True)
            for position, (name, of_ranks) in enumerate(zip(group.names, alike, strict=True)):
                self._places.setdefault(name, []).append((group, position))
                keys.setdefault(name, []).append((number, of_ranks))
        numbers: dict[tuple[object, ...], int] = {}
        self._numbers = {name: numbers.setdefault(tuple(key), len(numbers)) for name, key in keys.items()}

    def number(self, name: str) -> int:
        """The number of a tensor's layout."""
        return self._numbers[name]

    def holders(self, name: str) -> dict[Box, list[int]]:
        """The distinct blocks of a tensor, with the ranks that hold each, ascending."""
        held = [(rank, spec.boxes) for group, position in self._places[name] for rank, spec in group.column(position)]
        found: dict[Box, list[int]] = {}
        for rank, boxes in sorted(held):
            for box in boxes:
                ranks = found.setdefault(box, [])
                if not ranks or ranks[-1] != rank:
                    ranks.append(rank)
        return found


def _first_alike(rank_specs: RankSpecs) -> list[int]:
    """For each tensor of a rank, the position of the first one with the same blocks."""
    first: dict[tuple[Box, ...], int] = {}
    return [first.setdefault(spec.boxes, position) for position, spec in enumerate(rank_specs)]
