from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from twinkle_mesh import DeviceMesh, FSDP2Config, MegatronFSDPConfig, create_device_mesh

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

law = settings(settings.get_profile("mesh"))


@contextlib.contextmanager
def fake_world(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def group_ranks(mesh: TorchDeviceMesh, dim: str) -> list[int]:
    return dist.get_process_group_ranks(mesh.get_group(dim))


@law
@given(st.from_type(DeviceMesh), st.data())
def test_torchs_own_mesh_agrees(mesh: DeviceMesh, data: st.DataObject) -> None:
    rank = data.draw(st.sampled_from(mesh.ranks))
    ascends = all(group == sorted(group) for dim in mesh.dim_names for group in mesh.groups(dim))
    with fake_world(rank, max(mesh.ranks) + 1):
        if sorted(mesh.ranks) != list(range(mesh.world_size)):
            with pytest.raises(ValueError, match="convert the whole mesh"):
                mesh.to_torch()
            return
        if not ascends:
            with pytest.raises(ValueError, match="do not ascend"):
                mesh.to_torch()
            return
        built = mesh.to_torch()
        assert built.mesh.tolist() == torch.tensor(mesh.ranks).view(mesh.shape).tolist()
        assert (built.mesh_dim_names, built.device_type) == (mesh.dim_names, mesh.device_type)
        assert built.get_coordinate() == tuple(mesh.coordinate(rank).values())
        for dim in mesh.dim_names:
            assert group_ranks(built, dim) == mesh.group(dim, rank)
            assert built[dim].mesh.tolist() == mesh.submesh(dim, rank).ranks
            assert built.get_local_rank(dim) == mesh.coordinate(rank)[dim]
        read = DeviceMesh.from_torch(built, data_dims=())
        assert (read.layout, read.dim_names, read.device_type) == (mesh.layout, mesh.dim_names, mesh.device_type)


@settings(law, max_examples=15)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.data())
def test_flattened_names_of_recipes(shard: int, rep: int, cp: int, tp: int, data: st.DataObject) -> None:
    world = shard * rep * cp * tp
    rank = data.draw(st.integers(0, world - 1))
    fsdp2, _ = create_device_mesh(FSDP2Config(), dp_replicate_size=rep, cp_size=cp, tp_size=tp, world_size=world)
    megatron, _ = create_device_mesh(MegatronFSDPConfig(), cp_size=cp, tp_size=tp, world_size=world)
    for mesh in (fsdp2, megatron):
        assert mesh is not None
        with fake_world(rank, world):
            built = mesh.to_torch()
            for view, _ in mesh.views:
                assert group_ranks(built, view) == mesh.group(view, rank)
                with pytest.warns(UserWarning, match="Slicing"):
                    assert built[view].mesh.tolist() == mesh.submesh(view, rank).ranks
            read = DeviceMesh.from_torch(built)
            assert (read.layout, read.data_dims) == (mesh.layout, mesh.data_dims)


def test_errors() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4)
    with pytest.raises(ValueError, match="init_process_group"):
        mesh.to_torch()
    with fake_world(0, 2):
        for wrong in (mesh, mesh.submesh((), 0), DeviceMesh.from_ranks([1, 2], "dp")):
            with pytest.raises(ValueError, match="process group has 2 ranks"):
                wrong.to_torch()
        with pytest.raises(ValueError, match="mesh_dim_names"):
            DeviceMesh.from_torch(TorchDeviceMesh("cpu", [0, 1]))
        with pytest.raises(ValueError, match="data_dims="):
            DeviceMesh.from_torch(TorchDeviceMesh("cpu", [0, 1], mesh_dim_names=("replicas",)))


WORKER = """
    import os, signal, sys, traceback
    os.environ.pop("LOCAL_RANK", None)
    from datetime import timedelta
    import torch, torch.distributed as dist
    from twinkle_mesh import DeviceMesh, FSDP2Config, create_device_mesh

    def work(rank):
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=4, timeout=timedelta(seconds=30)
        )
        recipe, _ = create_device_mesh(FSDP2Config(backend="gloo"), dp_replicate_size=2, world_size=4, cp_size=2)
        grid = DeviceMesh.from_sizes(dp_size=2, tp_size=2)  # of "cuda", on a host that has none
        turned = DeviceMesh.from_ranks([[0, 2], [1, 3]], ("tp", "dp"), device_type="cpu")
        for mesh in (recipe, grid, turned, grid):
            built = mesh.to_torch()
            if not torch.cuda.is_available():
                assert built.device_type == "cpu"
            for dim in (*mesh.dim_names, *(view for view, _ in mesh.views)):
                value = torch.tensor([10 ** rank])
                dist.all_reduce(value, group=built.get_group(dim))
                peers = mesh.group(dim, rank)
                assert value.item() == sum(10 ** peer for peer in peers), (rank, dim, value)
                held = [torch.zeros(1) for _ in peers]
                dist.all_gather(held, torch.tensor([float(rank)]), group=built.get_group(dim))
                assert [int(value) for value in held] == peers, (rank, dim, held)
        try:
            grid.submesh("dp", rank).to_torch()
        except ValueError as error:
            assert "slice torch's" in str(error), error
        else:
            raise AssertionError(f"rank {rank} converted a part")
        value = torch.tensor([10 ** rank])
        dist.all_reduce(value, group=built["dp"].get_group())
        assert value.item() == sum(10 ** peer for peer in grid.group("dp", rank)), (rank, value)
        dist.barrier()
        dist.destroy_process_group()

    children = []
    for rank in range(4):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                work(rank)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, codes)))
"""


@pytest.mark.slow
def test_real_groups_reduce_what_the_mesh_says(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WORKER), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
