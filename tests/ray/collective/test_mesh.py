from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from twinkle_ray.collective import MeshCollective

pytestmark = pytest.mark.processes

RunRanks = Callable[..., list[Any]]


def build(rank: int, world: int, local: int, tp: int = 1, shard: int | None = None, **more: Any) -> MeshCollective:
    return MeshCollective(
        rank, world, local, rank % local, "cpu", tp_size=tp, sharding_world_size=shard, **{"timeout": 30.0, **more}
    )


def coordinates(rank: int, world: int, local: int, tp: int, shard: int | None) -> dict[str, Any]:
    with build(rank, world, local, tp, shard) as whole:
        views = {"whole": whole, "local": whole.local, "tp_world": whole.tp_world}
        found: dict[str, Any] = {
            name: (
                view.rank,
                view.world_size,
                view.ranks,
                view.dp_rank,
                view.dp_world_size,
                view.tp_rank,
                view.tp_world_size,
                view.local_rank,
                str(view.default_device),
            )
            for name, view in views.items()
        }
        assert whole.tp_mesh is not None and tuple(whole.tp_mesh.mesh.shape) == (tp,)
        found["dp_mesh"] = (whole.dp_mesh.mesh_dim_names, tuple(whole.dp_mesh.mesh.shape))
        return found


@pytest.mark.parametrize(("world", "local", "tp", "shard"), [(2, 2, 1, None), (4, 2, 2, None), (8, 4, 2, 4)])
def test_every_rank_knows_its_place_in_every_collective(
    run_ranks: RunRanks, world: int, local: int, tp: int, shard: int | None
) -> None:
    for rank, found in enumerate(run_ranks(world, coordinates, world, local, tp, shard)):
        node, tp_group = rank // local, rank // tp
        own = (rank // tp, world // tp, rank % tp, tp, rank % local, "cpu")
        assert found["whole"] == (rank, world, tuple(range(world)), *own)
        assert found["local"] == (rank % local, local, tuple(range(node * local, (node + 1) * local)), *own)
        assert found["tp_world"] == (rank % tp, tp, tuple(range(tp_group * tp, (tp_group + 1) * tp)), *own)
        shards = local // tp if shard is None else shard
        assert found["dp_mesh"] == (("dp_replicate", "dp_shard"), (world // tp // shards, shards))


def operations(rank: int, world: int, local: int, tp: int, device: str) -> None:
    with MeshCollective(rank, world, local, rank % local, device, tp_size=tp, timeout=30.0) as whole:
        torch.set_default_device(whole.default_device)
        for view in (whole, whole.local, whole.tp_world):
            members = list(view.ranks)
            view.barrier()
            total = torch.tensor([float(rank), 1.0])
            view.all_reduce(total)
            assert total.tolist() == [float(sum(members)), float(len(members))]
            largest = torch.tensor([rank])
            view.all_reduce(largest, dist.ReduceOp.MAX)
            assert largest.item() == max(members)
            own = torch.full((2, 3), rank, dtype=torch.bfloat16)
            for shape in ((2 * len(members), 3), (len(members), 2, 3)):
                gathered = torch.empty(shape, dtype=torch.bfloat16)
                view.all_gather(gathered, own)
                assert gathered.view(len(members), -1)[:, 0].tolist() == members
            parts = [torch.empty(2, 3, dtype=torch.bfloat16) for _ in members]
            view.all_gather_to_list(parts, own)
            assert [int(part[0, 0]) for part in parts] == members
            assert view.all_gather_objects({"rank": rank}) == [{"rank": member} for member in members]
            for source in range(view.world_size):
                value = torch.tensor([rank])
                view.broadcast(value, source)
                assert value.item() == members[source]
                objects: list[object] = [rank, "x" * rank]
                view.broadcast_objects(objects, source)
                assert objects == [members[source], "x" * members[source]]


GPUS = torch.cuda.device_count()
ON_GPUS = [pytest.param(GPUS, GPUS, 1, "cuda", marks=pytest.mark.gpu)] if GPUS > 1 else []


@pytest.mark.parametrize(("world", "local", "tp", "device"), [(2, 1, 1, "cpu"), (8, 4, 2, "cpu"), *ON_GPUS])
def test_operations_and_source_ranks_within_each_collective(
    run_ranks: RunRanks, world: int, local: int, tp: int, device: str
) -> None:
    run_ranks(world, operations, world, local, tp, device)


def closes_its_own(rank: int) -> None:
    dist.init_process_group("gloo")
    mine = dist.new_group([0, 1])
    whole = build(rank, 2, 2)
    created = list(whole._created)
    whole.local.close()
    whole.barrier()
    whole.close()
    whole.close()
    assert dist.is_initialized()
    for group in created:
        with pytest.raises(KeyError):
            dist.get_process_group_ranks(group)
    total = torch.ones(1)
    dist.all_reduce(total, group=mine)
    assert total.item() == 2
    again = build(rank, 2, 1)
    again.barrier()
    again.close()
    dist.destroy_process_group()
    for _ in range(3):  # over one store, which remembers every group
        owner = build(rank, 2, 2)
        owner.barrier()
        owner.close()
        assert not dist.is_initialized()


def test_close_destroys_what_it_created_and_nothing_else(run_ranks: RunRanks) -> None:
    run_ranks(2, closes_its_own)


def waits_alone(rank: int) -> str:
    whole = build(rank, 2, 2, timeout=2.0)
    whole.barrier()
    if rank:
        time.sleep(6.0)
        return ""
    with pytest.raises(RuntimeError) as caught:  # torch's own
        whole.local.all_reduce(torch.zeros(4))
    return str(caught.value)


def test_a_missing_rank_is_torchs_error_after_the_timeout(run_ranks: RunRanks) -> None:
    assert "Timed out" in run_ranks(2, waits_alone)[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8, 3, 0, "cpu"), "local_world_size=3 does not divide world_size=8; use 1, 2, 4, 8"),
        ((0, 8, 4, 0, "cpu", None, None, 3), "tp_size=3 does not divide local_world_size=4; use 1, 2, 4"),
        ((0, 8, 4, 0, "cpu", None, None, 0), "tp_size=0 does not divide local_world_size=4; use 1, 2, 4"),
        (
            (0, 8, 4, 0, "cpu", None, None, 2, 0),
            "sharding_world_size=0 does not divide world_size // tp_size=4; use 1, 2, 4",
        ),
        ((8, 8, 4, 0, "cpu"), "rank=8 is not in [0, world_size - 1] for world_size=8"),
        (
            (5, 8, 4, 2, "cpu"),
            "rank=5 cannot be local_rank=2 where ranks count node by node, 4 on each: use local_rank=1",
        ),
        ((0, 8, 4, 0, "tpu"), "device_type='tpu' is none of 'cuda', 'cpu', 'mps'"),
    ],
)
def test_every_rule_is_a_value_error_before_any_process_group(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        MeshCollective(*arguments)
    assert not dist.is_initialized()


def refuses(rank: int) -> None:
    with build(rank, 2, 2, 2) as whole:
        for source in (-1, 2):
            with pytest.raises(ValueError, match=f"source_rank={source}"):
                whole.broadcast(torch.zeros(1), source)
        with pytest.raises(ValueError, match="tp_size=4"):
            MeshCollective(rank, 2, 2, rank, "cpu", mesh=whole._mesh, tp_size=4)
        with pytest.raises(ValueError, match="world_size=3"):
            MeshCollective(1, 3, 2, rank, "cpu", mesh=whole._mesh)
        given = MeshCollective(
            rank, 2, 2, rank, "cpu", mesh=whole._mesh, process_group=whole.local.process_group, tp_size=2
        )
        assert given.tp_world_size == 2
        given.barrier()


def test_wrong_arguments_are_refused_before_anything_is_sent(run_ranks: RunRanks) -> None:
    run_ranks(2, refuses)
