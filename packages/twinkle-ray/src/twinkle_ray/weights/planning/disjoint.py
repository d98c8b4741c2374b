"""Search among boxes, and cutting of boxes that overlap into disjoint ones."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from twinkle_ray.weights.shards.box import Box

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


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
