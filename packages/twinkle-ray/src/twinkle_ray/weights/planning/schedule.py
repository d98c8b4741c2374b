"""The travel of buckets: the route of each, and the rounds of those that go over links."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.messages import RankReport, Route
    from twinkle_ray.weights.planning.buckets import Bucket

Transport: TypeAlias = Literal["auto", "gloo", "nccl", "shared", "cuda_ipc", "object_store"]


def check_transport(transport: str) -> None:
    """Refuse an unknown transport.

    Raises:
        ValueError: With the known ones.
    """
    if transport not in get_args(Transport):
        raise ValueError(f"transport={transport!r} is none of {', '.join(map(repr, get_args(Transport)))}")


def choose_route(
    bucket: Bucket, transport: Transport, source: Sequence[RankReport], target: Sequence[RankReport]
) -> Route:
    """The route of one bucket; within a process it is always "process".

    Raises:
        ValueError: If the transport cannot reach a target.
    """
    if bucket.distance == "process":
        return "process"
    if transport in ("gloo", "nccl"):
        return "link"
    if transport == "object_store":
        return "object_store"
    devices = {source[bucket.source].device, *(target[rank].device for rank in bucket.targets)}
    one_gpu = len(devices) == 1 and next(iter(devices)).startswith("cuda:")
    if transport == "auto":
        if bucket.distance == "far":
            return "link"
        if one_gpu:
            return "cuda_ipc"
        return "shared" if devices == {"cpu"} or link_kind("auto", source, target) == "gloo" else "link"
    if bucket.distance == "far" or (transport == "cuda_ipc" and not one_gpu):
        where = "on another host than" if bucket.distance == "far" else "on another device than"
        raise ValueError(
            f"transport={transport!r} cannot reach target ranks {list(bucket.targets)}, which are {where} source rank "
            f"{bucket.source}; use 'auto'"
        )
    return "cuda_ipc" if transport == "cuda_ipc" else "shared"


def link_kind(
    transport: Transport, source: Sequence[RankReport], target: Sequence[RankReport]
) -> Literal["gloo", "nccl"]:
    """NCCL if every process has its own GPU, which NCCL needs; Gloo otherwise.

    Raises:
        ValueError: If the transport is "nccl" and NCCL cannot work.
    """
    devices = {report.process: report.device for report in (*source, *target)}
    gpus = all(device.startswith("cuda:") for device in devices.values())
    apart = len(set(devices.values())) == len(devices)
    built = torch.distributed.is_nccl_available()
    if transport == "nccl" and not (gpus and apart and built):
        why = (
            "this torch is built without NCCL"
            if not built
            else "a process has no GPU of its own"
            if gpus
            else "weights are on the CPU"
        )
        raise ValueError(f"transport='nccl' needs every process on a GPU of its own: {why}; use 'gloo' or 'auto'")
    return "nccl" if transport in ("auto", "nccl") and gpus and apart and built else "gloo"


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
