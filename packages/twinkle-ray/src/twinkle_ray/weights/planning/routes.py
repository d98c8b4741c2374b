"""The route of each bucket, from the distance between its ends, their devices, and the `transport` option."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

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
            f"{bucket.source}; 'auto' would do"
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
        raise ValueError(f"transport='nccl' needs every process on a GPU of its own: {why}; 'gloo' or 'auto' would do")
    return "nccl" if transport in ("auto", "nccl") and gpus and apart and built else "gloo"
