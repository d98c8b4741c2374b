"""The schedule of a transfer over links: rounds of hops, which every process runs in the same order."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.planning.buckets import Bucket


class Hop(NamedTuple):
    """One bucket from one process to another.

    Attributes:
        bucket: Index of the bucket.
        sender: Process that sends: the source's, or a target's that forwards a bucket from an earlier round.
        receiver: Process that receives.
        forward: Whether the sender is a target.
    """

    bucket: int
    sender: int
    receiver: int
    forward: bool


def make_rounds(
    buckets: Sequence[Bucket], source_process: Sequence[int], target_process: Sequence[int]
) -> tuple[tuple[Hop, ...], ...]:
    """Order the hops of buckets that travel over links.

    Each source sends one bucket a round, to its targets in turn; every source starts at another target. A bucket for
    several targets on other hosts leaves its source once: one of them forwards it to the others a round later, so that
    the source's network link carries each byte once. Within a host every target gets it from the source. There is no
    deadlock: a process forwards in a round only what it received in an earlier one.
    """
    lines: dict[int, list[Bucket]] = {}
    for bucket in buckets:
        lines.setdefault(bucket.source, []).append(bucket)
    ordered = [_in_turn(line, source, len(target_process)) for source, line in sorted(lines.items())]
    processes: dict[tuple[int, ...], list[int]] = {}
    rounds: list[list[Hop]] = [[]]
    for together in zip_longest(*ordered):
        now, later = rounds[-1], list[Hop]()
        rounds.append(later)
        for bucket in filter(None, together):
            index, targets = bucket.index, bucket.targets
            receivers = processes.get(targets)
            if receivers is None:
                receivers = processes[targets] = sorted({target_process[rank] for rank in targets})
            first = receivers[index % len(receivers)]
            sender = source_process[bucket.source]
            now.append(Hop(index, sender, first, False))
            if len(receivers) > 1:
                relayed = bucket.distance == "far"
                others = [other for other in receivers if other != first]
                hops = [Hop(index, first if relayed else sender, other, relayed) for other in others]
                (later if relayed else now).extend(hops)
    return tuple(tuple(hops) for hops in rounds if hops)


def _in_turn(line: list[Bucket], source: int, targets: int) -> list[Bucket]:
    """Interleave a source's buckets over their targets; every source starts at another target."""
    queues: dict[tuple[int, ...], list[Bucket]] = {}
    for bucket in line:
        queues.setdefault(bucket.targets, []).append(bucket)
    order = sorted(queues, key=lambda group: ((group[0] - source) % targets, group))
    turns = zip_longest(*(queues[group] for group in order))
    return [bucket for turn in turns for bucket in turn if bucket is not None]
