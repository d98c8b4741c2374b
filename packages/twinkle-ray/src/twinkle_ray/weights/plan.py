"""The plan of which rank sends which block to which ranks: a pure function of both sides' specs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from twinkle_ray.weights.boxes import Box
from twinkle_ray.weights.errors import ManifestError
from twinkle_ray.weights.manifest import MatchOptions, TensorMatch, by_name, item_size, match

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from twinkle_ray.weights.shards import RankSpecs, TensorSpec

MOST_BLOCK_BYTES = 64 << 20
LEAST_BLOCK_BYTES = 1 << 20

Distance: TypeAlias = Literal["process", "host", "far"]


class Location(NamedTuple):
    """The process and the host of a rank."""

    process: str
    host: str


class Move(NamedTuple):
    """One block of one entry, which is an index into the plan's entries."""

    entry: int
    box: Box


class Transfer(NamedTuple):
    """Blocks that one source rank gives to each of a set of target ranks: they are staged together.

    Attributes:
        source: Source rank.
        targets: Target ranks, ascending, all at the same distance from the source rank.
        distance: Whether both ends share a process, only a host, or neither.
        moves: The blocks.
        nbytes: Bytes of all blocks in transit.
    """

    source: int
    targets: tuple[int, ...]
    distance: Distance
    moves: tuple[Move, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The transfers of a whole sync: every block that a target rank needs, once for each such rank.

    Attributes:
        entries: The tensors that move.
        transfers: In the order of their ends.
        replicas: The blocks that several source ranks hold, with those ranks.
    """

    entries: tuple[TensorMatch, ...]
    transfers: tuple[Transfer, ...]
    replicas: tuple[tuple[Move, tuple[int, ...]], ...]


class Block(NamedTuple):
    """A block that moves: its owners at the source, the target ranks that need it, and its bytes in transit."""

    box: Box
    owners: tuple[int, ...]
    targets: tuple[int, ...]
    nbytes: int


def make_plan(
    source: Sequence[RankSpecs],
    target: Sequence[RankSpecs],
    match_options: MatchOptions | None = None,
    *,
    source_locations: Sequence[Location] | None = None,
    target_locations: Sequence[Location] | None = None,
    block_bytes: int = MOST_BLOCK_BYTES,
) -> SyncPlan:
    """Plan the transfers from every rank's specs.

    Each target rank receives each element that it holds exactly once, and nothing else. The owners of a block share the
    sending: an owner in the target's process comes first, then one on its host, then the owner with the least to send;
    large blocks are assigned first, after those that have one owner only. Tensors that are laid out alike are planned
    once: the layers of a model repeat a few layouts.

    Args:
        source: Specs of each source rank.
        target: Specs of each target rank.
        match_options: Renaming, subset and conversion.
        source_locations: Of each source rank; None: every rank on its own host.
        target_locations: Of each target rank.
        block_bytes: Larger blocks are cut to this size; at least 1 MiB.

    Raises:
        ManifestError: If the sides do not describe the same weights, or no source rank holds a block that a target
            needs.
    """
    entries = match(source, target, match_options or MatchOptions())
    held, wanted = by_name(source), by_name(target)
    numbers: dict[tuple[object, ...], int] = {}
    layouts: list[list[Block]] = []
    layout_of: list[int] = []
    items: list[int] = []
    for entry in entries:
        item = item_size(entry.wire)
        key = (item, _layout(held[entry.source]), *(_layout(wanted[name]) for name in entry.targets))
        if key not in numbers:
            numbers[key] = len(layouts)
            needs = [_holders(wanted[name]) for name in entry.targets]
            layouts.append(_needed(entry, disjoint(_holders(held[entry.source])), needs, item))
            items.append(item)
        layout_of.append(numbers[key])
    layouts = _cut(layouts, Counter(layout_of), items, block_bytes)
    lines = _Senders(source_locations, target_locations, len(source)).lines(layouts, layout_of)
    transfers = tuple(
        Transfer(*ends, tuple(line.moves), line.nbytes) for ends, line in sorted(lines.items(), key=itemgetter(0))
    )
    replicas = tuple(
        (Move(entry, block.box), block.owners)
        for entry, layout in enumerate(layout_of)
        for block in layouts[layout]
        if len(block.owners) > 1
    )
    return SyncPlan(entries, transfers, replicas)


def _layout(of_ranks: Sequence[tuple[int, TensorSpec]]) -> tuple[object, ...]:
    return tuple([(rank, spec.boxes) for rank, spec in of_ranks])


def _holders(of_ranks: Sequence[tuple[int, TensorSpec]]) -> dict[Box, list[int]]:
    """The distinct blocks of a tensor, with the ranks that hold each, ascending."""
    found: dict[Box, list[int]] = {}
    for rank, spec in of_ranks:
        for box in dict.fromkeys(spec.boxes):
            found.setdefault(box, []).append(rank)
    return found


@dataclass(slots=True)
class _Line:
    """The blocks of one transfer, and their bytes."""

    moves: list[Move]
    nbytes: int = 0


_Ends: TypeAlias = tuple[int, tuple[int, ...], Distance]  # sender, receivers, and how far they are


class _Senders:
    """Chooses the sender of each block: the nearest owner, and among equals the one with the least to send."""

    def __init__(self, source: Sequence[Location] | None, target: Sequence[Location] | None, ranks: int) -> None:
        self._source, self._target = source, target
        self._load = [0] * ranks
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], list[_Route]] = {}

    def lines(self, layouts: Sequence[Sequence[Block]], layout_of: Sequence[int]) -> dict[_Ends, _Line]:
        """The blocks of all entries, by their ends; what has one sender is grouped once for each layout."""
        load, counts = self._load, Counter(layout_of)
        lines: dict[_Ends, _Line] = {}
        fixed: list[dict[_Ends, tuple[list[Box], list[int]]]] = []
        several: list[list[tuple[int, int, Box, _Route]]] = []
        for layout, blocks in enumerate(layouts):
            fixed.append({})
            several.append([])
            for position, block in enumerate(blocks):
                for route in self._routes(block.owners, block.targets):
                    if len(route.owners) > 1:
                        several[layout].append((-block.nbytes, position, block.box, route))
                        continue
                    if route.distance != "process":
                        load[route.owners[0]] += block.nbytes * counts[layout]
                    ends = (route.owners[0], route.targets, route.distance)
                    boxes, sizes = fixed[layout].setdefault(ends, ([], []))
                    boxes.append(block.box)
                    sizes.append(block.nbytes)
        for entry, layout in enumerate(layout_of):
            for ends, (boxes, sizes) in fixed[layout].items():
                line = lines.setdefault(ends, _Line([]))
                line.moves.extend([Move(entry, box) for box in boxes])
                line.nbytes += sum(sizes)
        waiting = [
            (size, entry, position, box, route)
            for entry, layout in enumerate(layout_of)
            for size, position, box, route in several[layout]
        ]
        for size, entry, _, box, (owners, targets, distance) in sorted(waiting):
            sender = min(owners, key=lambda rank: (load[rank], rank))
            load[sender] -= 0 if distance == "process" else size
            line = lines.setdefault((sender, targets, distance), _Line([]))
            line.moves.append(Move(entry, box))
            line.nbytes -= size
        return lines

    def _routes(self, owners: tuple[int, ...], targets: tuple[int, ...]) -> list[_Route]:
        """Split the receivers of a block by the distance of its nearest owners, with those owners."""
        known = self._known.get((owners, targets))
        if known is not None:
            return known
        groups: dict[tuple[tuple[int, ...], Distance], list[int]] = {}
        for rank in targets:
            near: tuple[tuple[int, ...], Distance] = (owners, "far")
            if self._source is not None and self._target is not None:
                at = self._target[rank]
                same_process = tuple(o for o in owners if self._source[o].process == at.process)
                same_host = tuple(o for o in owners if self._source[o].host == at.host)
                if same_host:
                    near = (same_host, "host")
                if same_process:
                    near = (same_process, "process")
            groups.setdefault(near, []).append(rank)
        found = [_Route(near, tuple(ranks), distance) for (near, distance), ranks in groups.items()]
        self._known[owners, targets] = found
        return found


class _Route(NamedTuple):
    """The source ranks that may send a block, and target ranks at one distance from each of them."""

    owners: tuple[int, ...]
    targets: tuple[int, ...]
    distance: Distance


def _needed(
    entry: TensorMatch, held: Mapping[Box, Sequence[int]], wanted: Sequence[Mapping[Box, Sequence[int]]], item: int
) -> list[Block]:
    """The blocks of one entry that move.

    Args:
        entry: The tensor.
        held: Disjoint blocks, with the source ranks that hold each.
        wanted: For each of the entry's target names, its blocks with the target ranks that hold each.
        item: Bytes of one element in transit.

    Raises:
        ManifestError: If no source rank holds a block that a target needs.
    """
    receivers: dict[Box, set[int]] = {}
    for boxes in wanted:
        for box, ranks in boxes.items():
            receivers.setdefault(box, set()).update(ranks)
    search = _Search(held)
    found: list[Block] = []
    for need in sorted(receivers):
        targets = tuple(sorted(receivers[need]))
        rest = [need]
        for box in search.around(need):
            left: list[Box] = []
            for part in rest:
                common = part.intersect(box)
                if common is None:
                    left.append(part)
                    continue
                found.append(Block(common, tuple(held[box]), targets, common.volume * item))
                left.extend(part.minus(box))
            rest = left
        if rest:
            raise ManifestError(
                f"no rank of the source holds {rest[0]} of {entry.source!r} (shape {entry.shape}), "
                f"which rank {targets[0]} of the target needs: its shards leave a hole"
            )
    return found


def _cut(
    layouts: Sequence[Sequence[Block]], counts: Mapping[int, int], items: Sequence[int], block_bytes: int
) -> list[list[Block]]:
    """Cut blocks to the largest size, and smaller where a few large ones would leave replicas idle."""
    totals: Counter[tuple[int, ...]] = Counter()
    for layout, blocks in enumerate(layouts):
        for block in blocks:
            totals[block.owners] += block.nbytes * counts[layout]

    def parts(block: Block, item: int) -> Iterator[Block]:
        owners = block.owners
        share = totals[owners] // (8 * len(owners)) if len(owners) > 1 else block_bytes
        limit = max(LEAST_BLOCK_BYTES, min(block_bytes, share))
        if block.nbytes <= limit:
            yield block
            return
        for box in block.box.slabs(limit // item):
            yield Block(box, owners, block.targets, box.volume * item)

    return [
        [part for block in blocks for part in parts(block, item)] for blocks, item in zip(layouts, items, strict=True)
    ]


class _Search:
    """Boxes sorted along the dimension with the most divisions, so that a search finds the few that may overlap."""

    def __init__(self, boxes: Collection[Box]) -> None:
        ndim = len(next(iter(boxes)).shape) if boxes else 0
        divisions = [len({box.offset[dim] for box in boxes}) for dim in range(ndim)]
        self._dim = divisions.index(max(divisions)) if divisions else None
        self._boxes = sorted(boxes)
        if self._dim is not None:
            dim = self._dim
            self._boxes.sort(key=lambda box: (box.offset[dim], box))
            self._starts = [box.offset[dim] for box in self._boxes]
            self._reach = list(accumulate((box.stop[dim] for box in self._boxes), max))

    def around(self, need: Box) -> Sequence[Box]:
        """Boxes that may share elements with `need`, in order."""
        if self._dim is None:
            return self._boxes
        first = bisect_left(self._reach, need.offset[self._dim] + 1)
        return self._boxes[first : bisect_left(self._starts, need.stop[self._dim])]


def disjoint(boxes: Mapping[Box, Sequence[int]]) -> dict[Box, list[int]]:
    """Cut boxes that overlap until none do; each part has all ranks that hold it, and other boxes stay as they are.

    Args:
        boxes: Distinct and not empty, with the ranks that hold each.
    """
    search = _Search(boxes)
    apart: dict[Box, list[int]] = {}
    mixed: dict[Box, Sequence[int]] = {}
    for box, ranks in boxes.items():
        if all(other == box or box.intersect(other) is None for other in search.around(box)):
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
    for low, high in pairwise(cuts):
        between = [
            (_between(part, dim, low, high), whole)
            for part, whole in parts
            if part.offset[dim] <= low and part.stop[dim] >= high
        ]
        yield from _cut_apart(between, dim + 1)


def _between(box: Box, dim: int, low: int, high: int) -> Box:
    offset, shape = list(box.offset), list(box.shape)
    offset[dim], shape[dim] = low, high - low
    return Box(tuple(offset), tuple(shape))
