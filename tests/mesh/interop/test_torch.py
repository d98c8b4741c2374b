from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, cast

import hypothesis.strategies as st
import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given, settings
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from twinkle_mesh import DeviceMesh
from twinkle_mesh.interop import torch as interop
from twinkle_mesh.recipes import FSDP2Config, MegatronFSDPConfig, create_device_mesh, torchtitan_meshes

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


def ascends(mesh: DeviceMesh) -> bool:
    lines = [mesh.submesh(dim, rank).ranks for dim in mesh.dim_names for rank in mesh.ranks]
    return all(list(line) == sorted(line) for line in lines)


@law
@given(st.from_type(DeviceMesh), st.data())
def test_torchs_own_mesh_agrees(mesh: DeviceMesh, data: st.DataObject) -> None:
    assume(mesh.dim_names and ascends(mesh))
    rank = data.draw(st.sampled_from(list(mesh.ranks)))
    with fake_world(rank, max(mesh.ranks) + 1):
        ours = mesh.to_torch()
        theirs = TorchDeviceMesh(
            mesh.device_type,
            torch.tensor(list(mesh.ranks), dtype=torch.int).view(mesh.shape),
            mesh_dim_names=mesh.dim_names,
        )
        assert torch.equal(ours.mesh, theirs.mesh)
        assert ours.mesh_dim_names == theirs.mesh_dim_names == mesh.dim_names
        assert ours.device_type == theirs.device_type
        assert ours.get_coordinate() == theirs.get_coordinate() == tuple(mesh.coordinate(rank).values())
        for dim in mesh.dim_names:
            assert group_ranks(ours, dim) == group_ranks(theirs, dim) == list(mesh.group(dim, rank))
            assert ours[dim].mesh.tolist() == theirs[dim].mesh.tolist() == list(mesh.submesh(dim, rank).ranks)
            assert ours.get_local_rank(dim) == theirs.get_local_rank(dim) == mesh.coordinate(rank)[dim]
        read = DeviceMesh.from_torch(ours, data_dims=())
        assert read == DeviceMesh.from_torch(theirs, data_dims=())
        assert read.layout.key == mesh.layout.key
        assert mesh.to_torch() is ours


@law
@given(st.from_type(DeviceMesh), st.data())
def test_groups_keep_the_order_of_the_mesh(mesh: DeviceMesh, data: st.DataObject) -> None:
    assume(mesh.dim_names)
    rank = data.draw(st.sampled_from(list(mesh.ranks)))
    with fake_world(rank, max(mesh.ranks) + 1):
        built = mesh.to_torch()
        assert built.get_coordinate() == tuple(mesh.coordinate(rank).values())
        assert built.mesh.flatten().tolist() == list(mesh.ranks)
        for dim in mesh.dim_names:
            assert group_ranks(built, dim) == list(mesh.group(dim, rank))
            assert built.get_local_rank(dim) == mesh.coordinate(rank)[dim]
            assert built[dim].mesh.tolist() == list(mesh.group(dim, rank))
        read = DeviceMesh.from_torch(built, data_dims=())
        assert read.layout.key == mesh.layout.key
        assert mesh.to_torch() is built


@law
@given(st.from_type(DeviceMesh))
def test_a_torch_that_sorts_ranks_gets_only_ranks_that_ascend(mesh: DeviceMesh) -> None:
    assume(mesh.dim_names and not ascends(mesh))
    real = dist.new_group

    def sorting(ranks: list[int], *, group_desc: str) -> object:
        return cast("object", real(ranks, group_desc=group_desc))

    with pytest.MonkeyPatch.context() as patch, fake_world(0, max(mesh.ranks) + 1):
        patch.setattr(dist, "new_group", sorting)
        with pytest.raises(ValueError, match="ascend"):
            mesh.to_torch()


@settings(law, max_examples=15)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.data())
def test_flattened_names_of_recipes(shard: int, rep: int, cp: int, tp: int, data: st.DataObject) -> None:
    world = shard * rep * cp * tp
    rank = data.draw(st.integers(0, world - 1))
    fsdp2, _ = create_device_mesh(FSDP2Config(), dp_replicate_size=rep, cp_size=cp, tp_size=tp, world_size=world)
    megatron, _ = create_device_mesh(MegatronFSDPConfig(), cp_size=cp, tp_size=tp, world_size=world)
    titan = torchtitan_meshes(world_size=world, dp_replicate=rep, cp=cp, tp=tp).dense
    for mesh in (fsdp2, megatron, titan):
        assert mesh is not None
        with fake_world(rank, world):
            built = mesh.to_torch()
            for view, dims in mesh.views:
                own = TorchDeviceMesh("cuda", torch.arange(world).view(mesh.shape), mesh_dim_names=mesh.dim_names)
                flat = own[dims]._flatten(view)
                assert group_ranks(built, view) == group_ranks(flat, view) == list(mesh.group(view, rank))
                assert built._flatten_mapping[view] == flat
                assert built._flatten_mapping[view].get_coordinate() == flat.get_coordinate()
                with pytest.warns(UserWarning, match="Slicing"):
                    assert built[view].mesh.tolist() == list(mesh.group(view, rank))
            assert DeviceMesh.from_torch(built) == DeviceMesh.from_dict({**mesh.to_dict(), "sequence_parallel": False})


def test_a_torch_with_other_private_members_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "_PRIVATE", (*interop._PRIVATE, "_later"))
    mesh, _ = create_device_mesh(FSDP2Config(), dp_replicate_size=2, world_size=4)
    assert mesh is not None
    with (
        fake_world(0, 4),
        pytest.raises(RuntimeError, match="_later"),
    ):
        mesh.to_torch()


def test_a_foreign_mesh_with_flattened_names_is_read() -> None:
    with fake_world(3, 8):
        foreign = TorchDeviceMesh("cpu", torch.arange(8).view(2, 2, 2), mesh_dim_names=("a", "b", "c"))
        foreign["a", "c"]._flatten("a_c")
        foreign["b", "c"]._flatten("inner")
        mesh = DeviceMesh.from_torch(foreign, data_dims="a")
        part = DeviceMesh.from_torch(foreign["b", "c"], data_dims=())
        with pytest.warns(UserWarning, match="'b' and 'c'"):
            assert DeviceMesh.from_torch(foreign["b", "c"]) == part
    ranks = torch.arange(8).view(2, 2, 2)
    assert mesh == DeviceMesh.from_ranks(ranks, ("a", "b", "c"), device_type="cpu", data_dims="a").with_views(
        a_c=("a", "c"), inner=("b", "c")
    )
    assert [mesh.data_rank(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert part.ranks == [0, 1, 2, 3]
    assert part.views == ()


def test_groups_are_made_in_one_order_on_every_rank_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real = dist.new_group
    made: list[list[int]] = []

    def counted(ranks: list[int], *, group_desc: str, sort_ranks: bool = True) -> object:
        made.append(ranks)
        return cast("object", real(ranks, group_desc=group_desc, sort_ranks=sort_ranks))

    monkeypatch.setattr(dist, "new_group", counted)
    dense, experts = create_device_mesh(FSDP2Config(), tp_size=2, ep_size=2, world_size=8)
    assert dense is not None and experts is not None
    orders = []
    for rank in range(8):
        made.clear()
        with fake_world(rank, 8):
            # Nothing is kept from another world: dims of size 1 share the groups of one rank.
            dense.to_torch()
            first = list(made)
            assert len(first) == len({tuple(ranks) for ranks in first})
            experts.to_torch()
            assert [ranks for ranks in first if len(ranks) == 2] == [[0, 1], [2, 3], [4, 5], [6, 7]]
            assert all(len(ranks) != 2 for ranks in made[len(first) :])
            count = len(made)
            dense.to_torch()
            dense["tp"].to_torch()
            assert len(made) == count
            orders.append(list(made))
    assert all(order == orders[0] for order in orders)


def test_ranks_outside_the_mesh_take_part() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, pp_size=2, tp_size=2).at(pp=1).with_views(both=("dp", "tp"), one="tp")
    with fake_world(1, 9):
        built = mesh.to_torch()
        assert built.get_coordinate() is None
        assert built.mesh.tolist() == [[4, 5], [6, 7]]
    with fake_world(6, 9):
        built = mesh.to_torch()
        assert built.get_coordinate() == (1, 0)
        assert group_ranks(built, "both") == [4, 5, 6, 7]
        assert built.get_group("one") is built.get_group("tp")


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        (
            DeviceMesh.from_sizes(dp_size=4),
            "the mesh's highest rank is 3, but torch's world has 2 ranks; use a world of at",
        ),
        (DeviceMesh.from_sizes(dp_size=2).at(dp=0), "to_torch needs a mesh of at least one dim"),
        (
            DeviceMesh.from_ranks([[0], [1]], ("dp", "tp")).with_views(dp_tp=("tp", "dp")).transpose(),
            None,
        ),
    ],
)
def test_errors(mesh: DeviceMesh, said: str | None) -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        mesh.to_torch()
    with fake_world(0, 2):
        if said is None:
            assert mesh.to_torch().get_coordinate() == (0, 0)
        else:
            with pytest.raises(ValueError, match=said):
                mesh.to_torch()


def test_a_view_in_another_order_than_the_mesh_is_refused() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=2, dp_size=2).with_views(data=("dp", "fsdp"))
    with fake_world(0, 4), pytest.raises(ValueError, match="ascend"):
        mesh.to_torch()


def test_a_mesh_without_names_is_an_error() -> None:
    with fake_world(0, 2), pytest.raises(ValueError, match="mesh_dim_names"):
        DeviceMesh.from_torch(TorchDeviceMesh("cpu", [0, 1]))


WORKER = """
    import os, signal, sys, traceback
    from datetime import timedelta
    import torch, torch.distributed as dist
    from twinkle_mesh import DeviceMesh

    def work(rank):
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=4, timeout=timedelta(seconds=30)
        )
        mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2, device_type="cpu").with_views(dp_tp=("dp", "tp"))
        late = DeviceMesh.from_ranks([[0, 1], [2, 3]], ("tp", "dp"), device_type="cpu")
        half = mesh.at(dp=1)
        built, turned, part = mesh.to_torch(), late.to_torch(), half.to_torch()
        for name, layout in ((built, mesh), (turned, late)):
            for dim in layout.dim_names:
                value = torch.tensor([10 ** rank])
                dist.all_reduce(value, group=name.get_group(dim))
                assert value.item() == sum(10 ** peer for peer in layout.group(dim, rank)), (rank, dim, value)
        everyone = [torch.zeros(1) for _ in range(4)]
        dist.all_gather(everyone, torch.tensor([float(rank)]), group=built.get_group("dp_tp"))
        assert [int(value) for value in everyone] == list(mesh["dp_tp"].ranks), everyone
        crossed = DeviceMesh.from_ranks([[3, 0], [1, 2]], ("dp", "tp"), device_type="cpu").with_views(all=("dp", "tp"))
        odd = crossed.to_torch()
        for dim in (*crossed.dim_names, "all"):
            peers = list(crossed.group(dim, rank))
            group = odd.get_group(dim)
            held = [torch.zeros(1) for _ in peers]
            dist.all_gather(held, torch.tensor([float(rank)]), group=group)
            assert [int(value) for value in held] == peers, (rank, dim, held)
            scattered = torch.zeros(1)
            dist.reduce_scatter_tensor(scattered, torch.tensor([float(peer) for peer in peers]), group=group)
            assert scattered.item() == rank * len(peers), (rank, dim, scattered)
            value = torch.tensor([rank])
            dist.broadcast(value, group=group, group_src=0)
            assert value.item() == peers[0], (rank, dim, value)
        grid = DeviceMesh.from_sizes(dp_size=2, tp_size=2, device_type="cpu")
        for other in (
            DeviceMesh.from_ranks([0, 1] if rank < 2 else [2, 3], "dp", device_type="cpu"),
            DeviceMesh.from_sizes(pp_size=2, cp_size=2, device_type="cpu").submesh("pp" if rank else "cp"),
            DeviceMesh.from_sizes(dp_size=4 if rank != 3 else 2, device_type="cpu"),
        ):
            try:
                other.to_torch()
            except ValueError as error:
                assert "fit together" in str(error), error
            else:
                raise AssertionError(f"rank {rank} converted {other}")
        grid["tp"].to_torch()
        for dim in ("dp", "tp"):
            for own in (grid.submesh(dim), grid.submesh(dim).rename({dim: "x"}), grid.submesh(dim).submesh(dim)):
                value = torch.tensor([10 ** rank])
                dist.all_reduce(value, group=own.to_torch().get_group(0))
                assert value.item() == sum(10 ** peer for peer in grid.group(dim, rank)), (rank, dim, own, value)
        if rank in half:
            value = torch.tensor([rank])
            dist.all_reduce(value, group=part.get_group("tp"))
            assert value.item() == 5
        else:
            assert part.get_coordinate() is None
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
