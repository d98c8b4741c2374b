"""The layout of an engine: its device, its process group, and torch's meshes of layers and of experts."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from twinkle_engines.batches.given import instance
from twinkle_mesh import DeviceMesh
from twinkle_remote import current_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

    from twinkle_remote import WorkerContext


_NEVER = (1 << 30) + 2
"""A tag of messages that nobody sends."""


@dataclass(frozen=True)
class ModelLayout:
    """Where this rank's part of a model lies.

    Attributes:
        device: This rank's device.
        mesh: Torch's mesh, always with the dims dp (replicas), fsdp (shards) and tp.
        experts: Torch's mesh of the same ranks with the dims ep_shard (shards of the same experts) and ep; None where
            each rank holds a part of every expert.
        ep_size: Ranks that the experts have to be divided over; 1 where the mesh does not say it.
    """

    device: torch.device
    mesh: TorchDeviceMesh
    experts: TorchDeviceMesh | None
    ep_size: int

    @property
    def tp_size(self) -> int:
        """Number of tensor-parallel ranks."""
        return self.mesh["tp"].size()

    @property
    def world_size(self) -> int:
        """Number of all ranks."""
        return self.data_world_size * self.tp_size

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank, which writes what is written once."""
        import torch.distributed as dist

        return dist.get_rank() == 0

    @property
    def data_rank(self) -> int:
        """This rank's share of the data, from 0; the ranks of a tp group have the same."""
        return self.mesh.get_local_rank("dp") * self.mesh["fsdp"].size() + self.mesh.get_local_rank("fsdp")

    @property
    def data_world_size(self) -> int:
        """Number of shares of the data."""
        return self.mesh["dp"].size() * self.mesh["fsdp"].size()

    @property
    def data_groups(self) -> tuple[ProcessGroup, ProcessGroup]:
        """The groups of the dims that divide data; reduced over both, a value is reduced over all data ranks."""
        return self.mesh.get_group("dp"), self.mesh.get_group("fsdp")

    def sum_over_data(self, values: Sequence[float]) -> list[float]:
        """The sums of some values over all data ranks, which all call this."""
        import torch.distributed as dist

        return self._reduce(values, dist.ReduceOp.SUM)

    def max_over_data(self, value: float) -> float:
        """The largest of the data ranks' values."""
        import torch.distributed as dist

        return self._reduce([value], dist.ReduceOp.MAX)[0]

    def max_over_all(self, value: float) -> float:
        """The largest of all ranks' values."""
        import torch
        import torch.distributed as dist

        if self.world_size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.item()

    def leave(self) -> None:
        """Close this rank's groups: ranks that wait in them for this one get an error at once, and these end too."""
        import torch
        import torch.distributed as dist

        meshes = [self.mesh] if self.experts is None else [self.mesh, self.experts]
        dims = [mesh.get_group(name) for mesh in meshes for name in mesh.mesh_dim_names or ()]
        never = torch.zeros(1, dtype=torch.uint8)
        for group in (*dims, dist.group.WORLD):
            if group is None:
                continue
            if self.device.type == "cuda":
                group.abort()
                continue
            for step in range(1, group.size()):  # Gloo closes its connections where a wait times out, and only there
                with suppress(RuntimeError):  # it times out, or the peer has ended
                    group.recv([never], (group.rank() + step) % group.size(), _NEVER).wait(timedelta(milliseconds=1))

    def _reduce(self, values: Sequence[float], how: object) -> list[float]:
        import torch
        import torch.distributed as dist

        groups = [group for group in self.data_groups if group.size() > 1]
        if not groups:
            return [float(value) for value in values]
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        for group in groups:
            dist.all_reduce(tensor, op=how, group=group)
        return tensor.tolist()


def own_layout(engine: str, given: object = None) -> ModelLayout:
    """The layout of the component that is being built on this worker; starts torch's process group.

    Args:
        engine: Name of the component's class, for errors.
        given: The constructor's `device_mesh`, which is checked: a worker knows its mesh.

    Raises:
        TypeError: What is given is no mesh.
        ValueError: For a mesh with a dim or an attribute that engines do not have, or ranks that share a process.
    """
    if given is not None:
        instance(DeviceMesh, "device_mesh", given)
    worker = current_worker()
    mesh = worker.mesh or DeviceMesh.from_sizes(dp_size=worker.world_size)
    check_sizes(engine, mesh)
    device = own_device(mesh)
    _start_process_group(engine, worker, device)
    ranks = [
        [[_rank_at(mesh, dp=d, fsdp=f, tp=t) for t in range(mesh.size("tp"))] for f in range(mesh.size("fsdp"))]
        for d in range(mesh.size("dp"))
    ]
    layers = DeviceMesh.from_ranks(ranks, ("dp", "fsdp", "tp"), device_type=device.type).to_torch()
    return ModelLayout(device, layers, _expert_mesh(mesh, ranks, device), mesh.ep_size)


def _expert_mesh(mesh: DeviceMesh, ranks: list[list[list[int]]], device: torch.device) -> TorchDeviceMesh | None:
    """The experts' mesh of the ranks by dp, fsdp and tp; without ep_size experts are divided over tp."""
    if mesh.ep_size > 1:
        view = mesh.expert
        shards = range(view.size("ep_shard"))
        rows = [[view.rank_at(pp=0, etp=0, ep_shard=i, ep=j) for j in range(mesh.ep_size)] for i in shards]
    elif mesh.size("tp") > 1:
        rows = [row for replica in ranks for row in replica]
    else:
        return None
    return DeviceMesh.from_ranks(rows, ("ep_shard", "ep"), device_type=device.type).to_torch()


def own_device(mesh: DeviceMesh | None) -> torch.device:
    """This rank's device: that of the mesh, or the CPU where there is no CUDA.

    Raises:
        ValueError: The group has GPUs, and torch sees none; or the mesh or the group is of devices that engines do not
            run on.
    """
    import torch

    kind = "cuda" if mesh is None else mesh.device_type
    of_group = _group_device_type()
    if kind not in ("cuda", "cpu", "mps") or of_group not in ("GPU", "CPU", None):
        shown = of_group if kind in ("cuda", "cpu", "mps") else kind
        raise ValueError(
            f"engines run on GPUs (CUDA) and CPUs, not on {shown}: their process groups would be Gloo's, over the "
            'host; use a group of "GPU" or "CPU"'
        )
    if kind == "cuda" and of_group == "GPU" and not torch.cuda.is_available():
        raise ValueError(
            f"the group {current_worker().group!r} has GPUs, but torch {torch.__version__} sees none in this "
            f"process (CUDA {torch.version.cuda}, CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}): "
            'install a torch with CUDA and a driver that fits it, or use a group of "CPU"; twinkle doctor --gpu looks'
        )
    if kind == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu" if kind == "cuda" else kind)


def check_precision(engine: str, **dtypes: str | None) -> None:
    """Raise for a dtype in which small gradients are zero, because nothing scales the loss.

    Args:
        engine: Name of the component's class, for errors.
        dtypes: Dtypes of a model that is trained, by the option's name.

    Raises:
        ValueError: One is float16.
    """
    for option, name in dtypes.items():
        if name == "float16":
            raise ValueError(
                f'{engine} trains without scaling the loss, and with {option}="float16" gradients below 6e-8 would be '
                f'0: use {option}="bfloat16", or "float32"'
            )


def _group_device_type() -> str | None:
    """The device type of this worker's group, such as "GPU"; None where that is not known."""
    given = os.environ.get("TWINKLE_DEVICE_TYPE")  # set by the Ray backend
    if given:
        return given
    from twinkle_remote.backends.support import active

    runtime, name = active(), current_worker().group
    group = None if runtime is None or name is None else runtime.groups.get(name)
    return None if group is None else group.device_type


def check_replicas(engine: str, mesh: DeviceMesh) -> None:
    """Raise for a mesh that divides a model, where an engine holds all of it on each rank."""
    check_sizes(engine, mesh)
    if mesh.ep_size > 1:
        raise ValueError(f"{engine} holds all experts on each rank, but the mesh has ep_size={mesh.ep_size}")
    if mesh.size("dp") != mesh.world_size:
        raise ValueError(
            f"{engine} holds the whole model on each rank, but the mesh has fsdp_size={mesh.size('fsdp')} and "
            f"tp_size={mesh.size('tp')}; use dp_size={mesh.world_size} alone"
        )


def check_sizes(engine: str, mesh: DeviceMesh) -> None:
    """Raise for a mesh that divides a model in ways that engines do not."""
    sizes = {dim: mesh.size(dim) for dim in mesh.dim_names if dim not in ("dp", "fsdp", "tp")}
    sizes |= {"ulysses": mesh.ulysses_size or 1, "vpp": mesh.vpp_size or 1}
    sizes |= {"etp": mesh.etp_size} if mesh.ep_size > 1 else {}
    for dim, size in sizes.items():
        if size > 1:
            raise ValueError(
                f"{engine} divides a model over dp, fsdp and tp, but the mesh has {dim}_size={size}; use {dim}_size=1, "
                f"with dp, fsdp and tp sizes that multiply to the group's size, {mesh.world_size}"
            )
    if mesh.sequence_parallel:
        raise ValueError(f"{engine} has no sequence parallelism; use sequence_parallel=False")


def _rank_at(mesh: DeviceMesh, **coordinates: int) -> int:
    return mesh.rank_at(**{dim: coordinates.get(dim, 0) for dim in mesh.dim_names})


def _start_process_group(engine: str, worker: WorkerContext, device: torch.device) -> None:
    import torch.distributed as dist

    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        if worker.world_size == 1:
            store = dist.HashStore()  # type: ignore[attr-defined]  # torch exports it without a stub
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        elif os.environ.get("WORLD_SIZE") == str(worker.world_size):
            dist.init_process_group(backend)
        else:
            raise ValueError(
                f"{engine} on {worker.world_size} ranks needs a process for each, because torch's process group is one "
                "for each process; use the modes ray or local (also under torchrun), or a group of 1 rank"
            )
    elif dist.get_world_size() != worker.world_size:
        raise ValueError(
            f"{engine} on {worker.world_size} ranks, but torch's process group in this process has "
            f"{dist.get_world_size()}; components of one process have groups of one size"
        )
