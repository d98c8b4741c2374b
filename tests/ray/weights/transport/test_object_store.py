"""Buckets in Ray's object store: the ranks of a sync share one mailbox, which frees what is dropped and can be lost."""

from __future__ import annotations

import time
import uuid
from importlib import import_module
from typing import Any

import pytest
import ray
import torch

from twinkle_ray.weights.planning.box_plan import SizedBox
from twinkle_ray.weights.planning.buckets import Bucket
from twinkle_ray.weights.shards.box import Box
from twinkle_ray.weights.transport.object_store import RayBlockStore

pytestmark = pytest.mark.ray

ROWS = 300_000


def bucket(index: int) -> Bucket:
    """A bucket with a block of float32 behind one of int8: their places are aligned."""
    pieces = (SizedBox(Box((0,), (3,)), 3), SizedBox(Box((0,), (ROWS,)), 4 * ROWS))
    return Bucket(index, 0, (0,), "far", (0, 1), ("int8", "float32"), pieces, 256 + 4 * ROWS)


def blocks(value: int) -> list[torch.Tensor]:
    return [torch.tensor([value, value + 1, value + 2], dtype=torch.int8), torch.arange(ROWS) / 2.0 + value]


def same(found: Any, value: int) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, blocks(value), strict=True))


def mailbox(sync: str) -> Any:
    return ray.get_actor(f"twinkle-weights-{sync}")


def end(sync: str) -> None:
    """Kill the mailbox of a sync, and wait until it has ended: `ray.kill` only asks for it."""
    ended = mailbox(sync)
    ray.kill(ended)

    def ask() -> None:
        for _ in range(300):
            ray.get(ended.drop.remote([]), timeout=30)
            time.sleep(0.1)

    with pytest.raises(ray.exceptions.RayActorError):
        ask()


def node_of(actor: Any) -> str:
    table = import_module("ray._private.state").actors(actor._actor_id.hex())
    return str(table["Address"]["NodeID"])


def test_ranks_of_a_sync_share_a_mailbox_and_its_loss_costs_what_it_held(ray_cluster: None) -> None:
    sync, other = uuid.uuid4().hex, uuid.uuid4().hex
    source, target = RayBlockStore(sync), RayBlockStore(sync)
    try:
        assert node_of(mailbox(sync)) == ray.get_runtime_context().get_node_id()
        with pytest.raises(ValueError, match="Failed to look up actor"):
            mailbox(other)
        first, second = source.put([(bucket(0), blocks(1)), (bucket(1), blocks(7))], copy=True)
        assert first != second
        for _ in range(2):  # a bucket goes to several targets
            assert same(target.get(bucket(0), first), 1) and same(target.get(bucket(1), second), 7)

        source.clear()
        with pytest.raises(ray.exceptions.RayTaskError, match="KeyError"):
            target.get(bucket(0), first)
        (third,) = source.put([(bucket(0), blocks(3))], copy=True)
        assert same(target.get(bucket(0), third), 3)

        end(sync)
        with pytest.raises(ray.exceptions.RayTaskError, match="KeyError"):
            target.get(bucket(0), third)
        (fourth,) = source.put(
            [(bucket(1), blocks(9))], copy=True
        )  # this one opens the mailbox anew, or finds the new one
        assert same(target.get(bucket(1), fourth), 9)
        source.close()
        target.close()
    finally:
        end(sync)
