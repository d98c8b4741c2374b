"""The plan of which rank sends which block to which ranks: a pure function of both sides' specs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from twinkle_ray.weights.errors import ManifestError
from twinkle_ray.weights.planning.layouts import BoxSearch, Layouts, disjoint
from twinkle_ray.weights.planning.manifest import MatchOptions, TensorMatch, item_size, match
from twinkle_ray.weights.shards.specs import RankSpecs, digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twinkle_ray.weights.shards.box import Box

__all__ = [
    "DEFAULT_BUCKET_BYTES",
    "MIN_SLAB_BYTES",
    "BoxPlan",
    "Digests",
    "Distance",
    "Location",
    "Move",
    "SizedBox",
    "Transfer",
    "check_bucket_bytes",
    "make_plan",
]

DEFAULT_BUCKET_BYTES = 16 << 20
MIN_SLAB_BYTES = 1 << 20

Distance: TypeAlias = Literal["process", "host", "far"]


@dataclass(frozen=True, slots=True)
class Location:
    """The process and the host of a rank."""

    process: str
    host: str


class Move(NamedTuple):
    """One block of one entry, which is an index into the plan's entries."""

    entry: int
    box: Box


Digests: TypeAlias = "Mapping[Move, tuple[int, ...]]"


class SizedBox(NamedTuple):
    """One block of an entry in a transfer, and its bytes in transit; entries that are alike share it."""

    box: Box
    nbytes: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """Blocks that one source rank sends to each of a set of target ranks.

    Attributes:
        source: Source rank.
        targets: Target ranks, ascending, all at the same distance from the source rank.
        distance: Whether both ends share a process, only a host, or neither.
        entries: The entry of each block, ascending.
        pieces: The blocks.
        nbytes: Bytes of all blocks.
    """

    source: int
    targets: tuple[int, ...]
    distance: Distance
    entries: tuple[int, ...]
    pieces: tuple[SizedBox, ...]
    nbytes: int

    @property
    def moves(self) -> tuple[Move, ...]:
        """The blocks one by one."""
        return tuple(Move(entry, piece.box) for entry, piece in zip(self.entries, self.pieces, strict=True))


@dataclass(frozen=True, slots=True)
class BoxPlan:
    """The transfers of a whole sync.

    Attributes:
        entries: The tensors that move.
        transfers: Every block that a target rank needs, once for each such rank.
        digest: Hash of entries and transfers.
        replicas: The blocks that several source ranks hold, with those ranks.
    """

    entries: tuple[TensorMatch, ...]
    transfers: tuple[Transfer, ...]
    digest: str
    replicas: tuple[tuple[Move, tuple[int, ...]], ...] = ()

    def nbytes(self, move: Move) -> int:
        """Bytes of a block in transit."""
        return move.box.volume * item_size(self.entries[move.entry].wire)

    def sent(self, ranks: int) -> list[int]:
        """Bytes that leave each of `ranks` source ranks; a block counts once, however many ranks receive it."""
        totals = [0] * ranks
        for transfer in self.transfers:
            totals[transfer.source] += transfer.nbytes
        return totals

    def received(self, ranks: int) -> list[int]:
        """Bytes that arrive at each of `ranks` target ranks."""
        totals = [0] * ranks
        for transfer in self.transfers:
            for rank in transfer.targets:
                totals[rank] += transfer.nbytes
        return totals


def make_plan(
    source: Sequence[RankSpecs],
    target: Sequence[RankSpecs],
    match_options: MatchOptions | None = None,
    *,
    source_locations: Sequence[Location] | None = None,
    target_locations: Sequence[Location] | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> BoxPlan:
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
        bucket_bytes: Larger blocks are cut to this size; at least 1 MiB.

    Raises:
        ManifestError: If the sides do not describe the same weights, or no source rank holds a block that a target
            needs.
        ValueError: If bucket_bytes is below 1 MiB.
    """
    check_bucket_bytes(bucket_bytes)
    entries = match(source, target, match_options or MatchOptions())
    held, wanted = Layouts(source), Layouts(target)
    numbers: dict[tuple[int, ...], int] = {}
    layouts: list[list[Block]] = []
    layout_of: list[int] = []
    for entry in entries:
        item = item_size(entry.wire)
        key = (item, held.number(entry.source), *map(wanted.number, entry.targets))
        if key not in numbers:
            numbers[key] = len(layouts)
            needs = [wanted.holders(name) for name in entry.targets]
            layouts.append(needed_blocks(entry, disjoint(held.holders(entry.source)), needs, item))
        layout_of.append(numbers[key])
    counts = Counter(layout_of)
    layouts = cut_blocks(layouts, [counts[i] for i in range(len(layouts))], [key[0] for key in numbers], bucket_bytes)
    routes = _routes(layouts, source_locations, target_locations)
    senders = _choose_senders(routes, layouts, layout_of, len(source))
    return BoxPlan(
        entries,
        _transfers(routes, layouts, layout_of, senders),
        digest((entries, layout_of, layouts, routes, [*senders.items()])),
        tuple(
            (Move(entry, block.box), block.owners)
            for entry, layout in enumerate(layout_of)
            for block in layouts[layout]
            if len(block.owners) > 1
        ),
    )


def check_bucket_bytes(bucket_bytes: int) -> None:
    """Refuse buckets below 1 MiB: they are not worth a message.

    Raises:
        ValueError: If `bucket_bytes` is below 1 MiB.
    """
    if bucket_bytes < MIN_SLAB_BYTES:
        raise ValueError(f"bucket_bytes={bucket_bytes} is below {MIN_SLAB_BYTES} (1 MiB)")


class _Route(NamedTuple):
    """One way of a block: the source ranks that may send it, and target ranks at one distance from each of them."""

    owners: tuple[int, ...]
    targets: tuple[int, ...]
    distance: Distance


_Routes: TypeAlias = "Sequence[Sequence[Sequence[_Route]]]"  # by layout, block and number
_Senders: TypeAlias = dict[tuple[int, int, int], int]  # by entry, block and number of the route


def _routes(
    layouts: Sequence[Sequence[Block]],
    source_locations: Sequence[Location] | None,
    target_locations: Sequence[Location] | None,
) -> _Routes:
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], list[_Route]] = {}
    found: list[list[list[_Route]]] = []
    for blocks in layouts:
        found.append([])
        for _, owners, targets, _ in blocks:
            routes = known.get((owners, targets))
            if routes is None:
                routes = known[owners, targets] = _by_distance(owners, targets, source_locations, target_locations)
            found[-1].append(routes)
    return found


def _by_distance(
    owners: tuple[int, ...],
    targets: tuple[int, ...],
    source_locations: Sequence[Location] | None,
    target_locations: Sequence[Location] | None,
) -> list[_Route]:
    """Split the receivers of a block by the distance of its nearest owners, with those owners."""
    if source_locations is None or target_locations is None:
        return [_Route(owners, targets, "far")]
    groups: dict[tuple[tuple[int, ...], Distance], list[int]] = {}
    for rank in targets:
        location = target_locations[rank]
        same_process = tuple(o for o in owners if source_locations[o].process == location.process)
        same_host = tuple(o for o in owners if source_locations[o].host == location.host)
        key: tuple[tuple[int, ...], Distance] = (
            (same_process, "process") if same_process else (same_host, "host") if same_host else (owners, "far")
        )
        groups.setdefault(key, []).append(rank)
    return [_Route(near, tuple(ranks), distance) for (near, distance), ranks in groups.items()]


def _choose_senders(
    routes: _Routes, layouts: Sequence[Sequence[Block]], layout_of: Sequence[int], ranks: int
) -> _Senders:
    """The sender of each block of each entry on each route with several owners: the one with the least to send."""
    load = [0] * ranks
    counts = Counter(layout_of)
    open_routes: list[list[tuple[int, int, int]]] = []
    for layout, blocks in enumerate(layouts):
        open_routes.append([])
        for position, block in enumerate(blocks):
            for number, (owners, _, distance) in enumerate(routes[layout][position]):
                if len(owners) > 1:
                    open_routes[layout].append((-block.nbytes, position, number))
                elif distance != "process":
                    load[owners[0]] += block.nbytes * counts[layout]
    waiting = sorted(
        (size, entry, position, number)
        for entry, layout in enumerate(layout_of)
        for size, position, number in open_routes[layout]
    )
    senders: _Senders = {}
    for size, entry, position, number in waiting:
        owners, _, distance = routes[layout_of[entry]][position][number]
        sender = min(owners, key=lambda rank: (load[rank], rank))
        senders[entry, position, number] = sender
        load[sender] -= 0 if distance == "process" else size
    return senders


_Ends: TypeAlias = tuple[int, tuple[int, ...], Distance]


def _transfers(
    routes: _Routes, layouts: Sequence[Sequence[Block]], layout_of: Sequence[int], senders: _Senders
) -> tuple[Transfer, ...]:
    """The blocks of all entries, by sender and receivers."""
    lines: dict[_Ends, tuple[list[int], list[SizedBox]]] = {}
    alike: dict[int, list[tuple[list[int], list[SizedBox], list[SizedBox]]]] = {}
    for entry, layout in enumerate(layout_of):
        parts = alike.get(layout)
        if parts is None:
            together: dict[_Ends, list[SizedBox]] = {}
            shared = True
            for position, block in enumerate(layouts[layout]):
                piece = SizedBox(block.box, block.nbytes)
                for number, (owners, targets, distance) in enumerate(routes[layout][position]):
                    shared = shared and len(owners) == 1
                    sender = owners[0] if len(owners) == 1 else senders[entry, position, number]
                    together.setdefault((sender, targets, distance), []).append(piece)
            parts = [(*lines.setdefault(ends, ([], [])), pieces) for ends, pieces in together.items()]
            if shared:
                alike[layout] = parts
        for its_entries, its_pieces, pieces_here in parts:
            its_entries.extend([entry] * len(pieces_here))
            its_pieces.extend(pieces_here)
    return tuple(
        Transfer(*ends, tuple(entries), tuple(pieces), sum([piece.nbytes for piece in pieces]))
        for ends, (entries, pieces) in sorted(lines.items(), key=itemgetter(0))
    )


class Block(NamedTuple):
    """A block that moves: its owners at the source, the target ranks that need it, and its bytes in transit."""

    box: Box
    owners: tuple[int, ...]
    targets: tuple[int, ...]
    nbytes: int


def needed_blocks(
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
    search = BoxSearch(held)
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
                if common != part:
                    left.extend(part.minus(box))
            rest = left
            if not rest:
                break
        if rest:
            raise ManifestError(
                f"no rank of the source holds {rest[0]} of {entry.source!r} (shape {entry.shape}), "
                f"which rank {targets[0]} of the target needs: its shards leave a hole"
            )
    return found


def cut_blocks(
    layouts: Sequence[Sequence[Block]], counts: Sequence[int], items: Sequence[int], bucket_bytes: int
) -> list[list[Block]]:
    """Cut blocks to the size of a bucket, and smaller if a few large ones would leave replicas idle.

    Args:
        layouts: For each layout its blocks.
        counts: How many entries have each layout.
        items: Bytes of one element in transit, for each layout.
        bucket_bytes: Most bytes of a block.
    """
    totals: dict[tuple[int, ...], int] = {}
    for blocks, count in zip(layouts, counts, strict=True):
        for block in blocks:
            totals[block.owners] = totals.get(block.owners, 0) + block.nbytes * count

    def parts(block: Block, item: int) -> Iterator[Block]:
        owners = block.owners
        share = totals[owners] // (8 * len(owners)) if len(owners) > 1 else bucket_bytes
        limit = max(MIN_SLAB_BYTES, min(bucket_bytes, share))
        if block.nbytes <= limit:
            yield block
            return
        for box in block.box.slabs(limit // item):
            yield Block(box, owners, block.targets, box.volume * item)

    return [
        [part for block in blocks for part in parts(block, item)] for blocks, item in zip(layouts, items, strict=True)
    ]
