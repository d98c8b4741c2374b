"""The specs of a side by tensor, where they are reported by rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.shards.box import Box
    from twinkle_ray.weights.shards.specs import RankSpecs, TensorSpec


@dataclass(frozen=True, slots=True)
class Column:
    """One tensor on ranks that name the same tensors in the same order.

    Attributes:
        number: Of the group of ranks; columns of one side with the same number have the same ranks.
        ranks: The ranks, ascending.
        specs: Of each of them.
    """

    number: int
    ranks: Sequence[int]
    specs: Sequence[TensorSpec]


def columns(all_specs: Sequence[RankSpecs]) -> dict[str, list[Column]]:
    """The columns of each name, names in the order in which the ranks first have them."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, rank_specs in enumerate(all_specs):
        groups.setdefault(tuple([spec.name for spec in rank_specs]), []).append(rank)
    found: dict[str, list[Column]] = {}
    for number, (names, ranks) in enumerate(groups.items()):
        for name, specs in zip(names, zip(*(all_specs[rank] for rank in ranks), strict=True), strict=True):
            found.setdefault(name, []).append(Column(number, ranks, specs))
    return found


class Layouts:
    """Numbers the layouts of a side's tensors: tensors with the same number have the same blocks on the same ranks.

    Args:
        all_specs: Specs of each rank.
    """

    def __init__(self, all_specs: Sequence[RankSpecs]) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._of: dict[str, int] = {}
        self._columns = columns(all_specs)

    def number(self, name: str) -> int:
        """The number of a tensor's layout."""
        if name not in self._of:
            key = tuple((column.number, tuple([spec.boxes for spec in column.specs])) for column in self._columns[name])
            self._of[name] = self._numbers.setdefault(key, len(self._numbers))
        return self._of[name]

    def holders(self, name: str) -> dict[Box, list[int]]:
        """The distinct blocks of a tensor, with the ranks that hold each, ascending."""
        held = [
            (rank, spec.boxes)
            for column in self._columns[name]
            for rank, spec in zip(column.ranks, column.specs, strict=True)
        ]
        found: dict[Box, list[int]] = {}
        for rank, boxes in sorted(held):
            for box in boxes:
                ranks = found.setdefault(box, [])
                if not ranks or ranks[-1] != rank:
                    ranks.append(rank)
        return found
