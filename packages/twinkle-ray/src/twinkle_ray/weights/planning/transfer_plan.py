"""Which rank sends which block to which ranks: a pure function of both sides' specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from twinkle_ray.weights.errors import ManifestError
from twinkle_ray.weights.planning.disjoint import BoxSearch, disjoint
from twinkle_ray.weights.planning.manifest import MatchOptions, TensorMatch, item_size, match
from twinkle_ray.weights.shards.specs import RankSpecs, digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twinkle_ray.weights.shards.box import Box

MIN_SLAB_BYTES = 1 << 20
DEFAULT_BUCKET_BYTES = 16 << 20

Distance: TypeAlias = Literal["process", "host", "far"]


@dataclass(frozen=True, slots=True)
class Location:
    """The process and the host of a rank."""

    process: str
    host: str


@dataclass(frozen=True, slots=True)
class Move:
    """One block of one entry, which is an index into the plan's entries."""

    entry: int
    box: Box


Digests: TypeAlias = "Mapping[Move, tuple[int, ...]]"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Blocks that one source rank sends to each of a set of target ranks.

    Attributes:
        source: Source rank.
        targets: Target ranks, ascending, all at the same distance from the source rank.
        distance: Whether both ends share a process, only a host, or neither.
        moves: The blocks.
    """

    source: int
    targets: tuple[int, ...]
    distance: Distance
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class TransferPlan:
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
            totals[transfer.source] += sum(self.nbytes(move) for move in transfer.moves)
        return totals

    def received(self, ranks: int) -> list[int]:
        """Bytes that arrive at each of `ranks` target ranks."""
        totals = [0] * ranks
        for transfer in self.transfers:
            size = sum(self.nbytes(move) for move in transfer.moves)
            for rank in transfer.targets:
                totals[rank] += size
        return totals


@dataclass(frozen=True, slots=True)
class _Need:
    """A block that moves: its owners at the source, and the target ranks that need it."""

    move: Move
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
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> TransferPlan:
    """Plan the transfers from every rank's specs.

    Each target rank receives each element that it holds exactly once, and nothing else. The owners of a block share the
    sending: an owner in the target's process comes first, then one on its host, then the owner with the least to send;
    large blocks are assigned first.

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
    needs: list[_Need] = []
    held = {name: disjoint(boxes) for name, boxes in _boxes_by_name(source).items()}
    wanted = _boxes_by_name(target)
    overlaps: dict[object, list[tuple[Box, tuple[int, ...], tuple[int, ...]]]] = {}
    for index, entry in enumerate(entries):
        layout = (_layout(held[entry.source]), *(_layout(wanted[name]) for name in entry.targets))
        if layout not in overlaps:  # the layers of a model repeat a few layouts
            overlaps[layout] = list(_overlaps(entry, held[entry.source], wanted))
        size = item_size(entry.wire)
        needs.extend(
            _Need(Move(index, box), owners, targets, box.volume * size) for box, owners, targets in overlaps[layout]
        )
    needs = list(_cut(needs, entries, bucket_bytes))
    transfers = _assign(needs, len(source), source_locations, target_locations)
    replicas = tuple((need.move, need.owners) for need in needs if len(need.owners) > 1)
    return TransferPlan(entries, transfers, digest((entries, _plain(transfers))), replicas)


def _plain(transfers: Sequence[Transfer]) -> list[object]:
    """Transfers as tuples, whose repr is quick."""
    return [
        (
            each.source,
            each.targets,
            each.distance,
            [(move.entry, move.box.offset, move.box.shape) for move in each.moves],
        )
        for each in transfers
    ]


def check_bucket_bytes(bucket_bytes: int) -> None:
    """Refuse buckets below 1 MiB: they are not worth a message.

    Raises:
        ValueError: If `bucket_bytes` is below 1 MiB.
    """
    if bucket_bytes < MIN_SLAB_BYTES:
        raise ValueError(f"bucket_bytes={bucket_bytes} is below {MIN_SLAB_BYTES} (1 MiB)")


def _boxes_by_name(all_specs: Sequence[RankSpecs]) -> dict[str, dict[Box, list[int]]]:
    """The distinct blocks of each name, with the ranks that hold each block."""
    found: dict[str, dict[Box, list[int]]] = {}
    for rank, rank_specs in enumerate(all_specs):
        for spec in rank_specs:
            boxes = found.setdefault(spec.name, {})
            for box in spec.boxes:
                ranks = boxes.setdefault(box, [])
                if not ranks or ranks[-1] != rank:
                    ranks.append(rank)
    return found


def _layout(boxes: Mapping[Box, Sequence[int]]) -> tuple[object, ...]:
    """Equal for tensors that are laid out alike."""
    return tuple((box.offset, box.shape, *ranks) for box, ranks in boxes.items())


def _overlaps(
    entry: TensorMatch, held: dict[Box, list[int]], wanted: Mapping[str, dict[Box, list[int]]]
) -> Iterator[tuple[Box, tuple[int, ...], tuple[int, ...]]]:
    """The blocks of one entry that move, each with its owners and its receivers."""
    receivers: dict[Box, set[int]] = {}
    for name in entry.targets:
        for box, ranks in wanted[name].items():
            receivers.setdefault(box, set()).update(ranks)
    search = BoxSearch(held)
    for need in sorted(receivers):
        targets = tuple(sorted(receivers[need]))
        rest = [need]
        for box in search.around(need):
            left: list[Box] = []
            for part in rest:
                common = part.intersect(box)
                if common is not None:
                    yield common, tuple(held[box]), targets
                left.extend(part.minus(box))
            rest = left
            if not rest:
                break
        if rest:
            raise ManifestError(
                f"no rank of the source holds {rest[0]} of {entry.source!r} (shape {entry.shape}), "
                f"which rank {targets[0]} of the target needs: its shards leave a hole"
            )


def _cut(needs: Sequence[_Need], entries: Sequence[TensorMatch], bucket_bytes: int) -> Iterator[_Need]:
    """Cut blocks to the size of a bucket, and smaller if a few large ones would leave replicas idle."""
    totals: dict[tuple[int, ...], int] = {}
    for need in needs:
        totals[need.owners] = totals.get(need.owners, 0) + need.nbytes
    slabs: dict[tuple[Box, int], list[Box]] = {}
    for need in needs:
        share = totals[need.owners] // (8 * len(need.owners)) if len(need.owners) > 1 else bucket_bytes
        limit = max(MIN_SLAB_BYTES, min(bucket_bytes, share))
        size = item_size(entries[need.move.entry].wire)
        if need.nbytes <= limit:
            yield need
            continue
        cut = (need.move.box, limit // size)
        if cut not in slabs:
            slabs[cut] = list(need.move.box.slabs(limit // size))
        for box in slabs[cut]:
            yield _Need(Move(need.move.entry, box), need.owners, need.targets, box.volume * size)


_Route: TypeAlias = tuple[int, tuple[int, ...], Distance]


def _assign(
    needs: Sequence[_Need],
    ranks: int,
    source_locations: Sequence[Location] | None,
    target_locations: Sequence[Location] | None,
) -> tuple[Transfer, ...]:
    load = [0] * ranks
    chosen: dict[int, list[_Route]] = {}
    near: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[tuple[int, ...], tuple[int, ...], Distance]]] = {}
    for i in sorted(range(len(needs)), key=lambda i: (-needs[i].nbytes, i)):
        need = needs[i]
        routes = chosen.setdefault(i, [])
        ends = (need.owners, need.targets)
        if ends not in near:
            near[ends] = _by_distance(need, source_locations, target_locations)
        for owners, targets, distance in near[ends]:
            owner = owners[0] if len(owners) == 1 else min(owners, key=lambda rank: (load[rank], rank))
            load[owner] += 0 if distance == "process" else need.nbytes
            routes.append((owner, targets, distance))
    moves: dict[_Route, list[Move]] = {}
    for i, need in enumerate(needs):
        for route in chosen[i]:
            moves.setdefault(route, []).append(need.move)
    return tuple(Transfer(*route, tuple(moves[route])) for route in sorted(moves))


def _by_distance(
    need: _Need, source_locations: Sequence[Location] | None, target_locations: Sequence[Location] | None
) -> list[tuple[tuple[int, ...], tuple[int, ...], Distance]]:
    """Split the receivers of a block by the distance of its nearest owners, with those owners."""
    if source_locations is None or target_locations is None:
        return [(need.owners, need.targets, "far")]
    groups: dict[tuple[tuple[int, ...], Distance], list[int]] = {}
    for rank in need.targets:
        location = target_locations[rank]
        same_process = tuple(o for o in need.owners if source_locations[o].process == location.process)
        same_host = tuple(o for o in need.owners if source_locations[o].host == location.host)
        key: tuple[tuple[int, ...], Distance] = (
            (same_process, "process") if same_process else (same_host, "host") if same_host else (need.owners, "far")
        )
        groups.setdefault(key, []).append(rank)
    return [(owners, tuple(ranks), distance) for (owners, distance), ranks in groups.items()]
