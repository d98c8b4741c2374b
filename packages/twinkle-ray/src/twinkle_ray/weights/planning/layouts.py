"""Layouts of a side: the specs by tensor where they are reported by rank, and boxes that are disjoint."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from twinkle_ray.weights.shards.box import Box

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

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


class BoxSearch:
    """Boxes sorted along the dimension with the most divisions, so that a search finds the few that may overlap."""

    def __init__(self, boxes: Collection[Box]) -> None:
        ndim = len(next(iter(boxes)).shape) if boxes else 0
        divisions = [len({box.offset[dim] for box in boxes}) for dim in range(ndim)]
        self.dim = divisions.index(max(divisions)) if divisions else None
        if self.dim is None:
            self.boxes = sorted(boxes)
            return
        dim = self.dim
        self.boxes = sorted(boxes, key=lambda box: (box.offset[dim], box))
        self.starts = [box.offset[dim] for box in self.boxes]
        self.reach = list(accumulate((box.stop[dim] for box in self.boxes), max))

    def around(self, need: Box) -> Sequence[Box]:
        """Boxes that may share elements with `need`, in order."""
        if self.dim is None:
            return self.boxes
        first = bisect_left(self.reach, need.offset[self.dim] + 1)
        return self.boxes[first : bisect_left(self.starts, need.stop[self.dim])]


def disjoint(boxes: Mapping[Box, Sequence[int]]) -> dict[Box, list[int]]:
    """Cut boxes that overlap until none do; each part has all ranks that hold it, and other boxes stay as they are.

    Args:
        boxes: Distinct and not empty, with the ranks that hold each.
    """
    search = BoxSearch(boxes)
    apart: dict[Box, list[int]] = {}
    mixed: dict[Box, Sequence[int]] = {}
    for box, ranks in boxes.items():
        near = search.around(box)
        if len(near) == 1 or all(other == box or box.intersect(other) is None for other in near):
            apart[box] = list(ranks)
        else:
            mixed[box] = ranks
    for box, parts in _cut_apart([(box, box) for box in mixed], 0):
        apart[box] = sorted({rank for whole in parts for rank in mixed[whole]})
    return apart


def _cut_apart(parts: Sequence[tuple[Box, Box]], dim: int) -> Iterator[tuple[Box, list[Box]]]:
    """Disjoint regions from dimension `dim` on, each with the boxes around it; `parts` pairs a part with its box."""
    if not parts:
        return
    if dim == len(parts[0][0].shape):
        yield parts[0][0], [whole for _, whole in parts]
        return
    cuts = sorted({end for part, _ in parts for end in (part.offset[dim], part.stop[dim])})
    waiting = sorted(parts, key=lambda part: part[0].offset[dim], reverse=True)
    active: list[tuple[Box, Box]] = []
    for low, high in pairwise(cuts):
        while waiting and waiting[-1][0].offset[dim] <= low:
            active.append(waiting.pop())
        active = [part for part in active if part[0].stop[dim] > low]
        yield from _cut_apart([(_between(part, dim, low, high), whole) for part, whole in active], dim + 1)


def _between(box: Box, dim: int, low: int, high: int) -> Box:
    offset, shape = list(box.offset), list(box.shape)
    offset[dim], shape[dim] = low, high - low
    return Box(tuple(offset), tuple(shape))
