"""The layout of an engine: its device, its process group, and torch's mesh of the ranks that hold a model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from twinkle_mesh import DeviceMesh
from twinkle_remote import current_worker
from twinkle_remote.backends.support import active

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

    from twinkle_remote import WorkerContext


@dataclass(frozen=True)
class ModelLayout:
    """Where this rank's part of a model lies.

    Attributes:
        device: This rank's device.
        mesh: Torch's mesh, always with the dims dp (replicas), fsdp (shards) and tp.
    """

    device: torch.device
    mesh: TorchDeviceMesh

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
        return dist.get_rank() == 0

    @property
    def data_rank(self) -> int:
        """This rank's share of the data, from 0; the ranks of a tp group have the same."""
        return self.mesh.get_local_rank("dp") * self.mesh["fsdp"].size() + self.mesh.get_local_rank("fsdp")

    @property
    def data_world_size(self) -> int:
        """Number of shares of the data."""
        return self.mesh["dp"].size() * self.mesh["fsdp"].size()

    def sum_over_data(self, values: Sequence[float]) -> list[float]:
        """The sums of some values over all data ranks, which all call this."""
        return self._reduce(values, dist.ReduceOp.SUM, ("dp", "fsdp"))

    def max_over_all(self, value: float) -> float:
        """The largest of all ranks' values; all ranks call this."""
        return self._reduce([value], dist.ReduceOp.MAX, ("dp", "fsdp", "tp"))[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, which all call this."""
        found: list[Any] = [value] * dist.get_world_size()
        if len(found) > 1:
            dist.all_gather_object(found, value)
        return found

    def _reduce(self, values: Sequence[float], how: object, dims: Sequence[str]) -> list[float]:
        groups = [self.mesh.get_group(dim) for dim in dims if self.mesh[dim].size() > 1]
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device if groups else "cpu")
        for group in groups:
            dist.all_reduce(tensor, op=how, group=group)
        return [float(value) for value in tensor]


def own_layout(engine: str) -> ModelLayout:
    """The layout of the component that is being built on this worker; starts torch's process group.

    It waits for the other ranks of the group, as torch's `init_process_group` does.

    Raises:
        ValueError: For a mesh with a dim or an attribute that engines do not have, or ranks that share a process.
    """
    worker = current_worker()
    mesh = worker.mesh or DeviceMesh.from_sizes(dp_size=worker.world_size)
    check_sizes(engine, mesh)
    device = own_device(mesh)
    _start_process_group(engine, worker, device)

    def rank_at(**coordinates: int) -> int:
        return mesh.rank_at(**{dim: coordinates.get(dim, 0) for dim in mesh.dim_names})

    sizes = [range(mesh.size(dim)) for dim in ("dp", "fsdp", "tp")]
    ranks = [[[rank_at(dp=d, fsdp=f, tp=t) for t in sizes[2]] for f in sizes[1]] for d in sizes[0]]
    return ModelLayout(device, DeviceMesh.from_ranks(ranks, ("dp", "fsdp", "tp"), device_type=device.type).to_torch())


def own_device(mesh: DeviceMesh | None) -> torch.device:
    """This rank's device: that of the mesh, or the CPU where there is no CUDA.

    Raises:
        ValueError: The mesh or the group is of devices that engines do not run on; or the group has GPUs, and torch
            sees none.
    """
    kind = "cuda" if mesh is None else mesh.device_type
    of_group = _group_device_type()
    if kind not in ("cuda", "cpu", "mps") or of_group not in ("GPU", "CPU", None):
        raise ValueError(
            f'engines run on GPUs (CUDA) and CPUs, not on {of_group} ({kind}): use a group of "GPU" or "CPU"'
        )
    if kind != "cuda" or not torch.cuda.is_available():
        if kind == "cuda" and of_group == "GPU":
            raise ValueError(
                f"the group {current_worker().group!r} has GPUs, but torch {torch.__version__} sees none in this "
                f'process (CUDA {torch.version.cuda}): use a torch and a driver that fit, or a group of "CPU"'
            )
        return torch.device("cpu" if kind == "cuda" else kind)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def _group_device_type() -> str | None:
    """The device type of this worker's group, such as "GPU"; None where that is not known."""
    given = os.environ.get("TWINKLE_DEVICE_TYPE")  # set by the Ray backend
    runtime, name = active(), current_worker().group
    group = None if given or runtime is None or name is None else runtime.groups.get(name)
    return given if group is None else group.device_type


def check_replicas(engine: str, mesh: DeviceMesh) -> None:
    """Raise for a mesh that divides a model, where an engine holds all of it on each rank."""
    check_sizes(engine, mesh)
    if mesh.size("dp") != mesh.world_size:
        raise ValueError(
            f"{engine} holds the whole model on each rank, but the mesh has fsdp_size={mesh.size('fsdp')} and "
            f"tp_size={mesh.size('tp')}; use dp_size={mesh.world_size} alone"
        )


def check_sizes(engine: str, mesh: DeviceMesh) -> None:
    """Raise for a mesh that divides a model in ways that engines do not, such as by experts."""
    sizes = {dim: mesh.size(dim) for dim in mesh.dim_names if dim not in ("dp", "fsdp", "tp")}
    sizes |= {"ulysses": mesh.ulysses_size or 1, "vpp": mesh.vpp_size or 1, "ep": mesh.ep_size or 1}
    for dim, size in sizes.items():
        if size > 1:
            raise ValueError(
                f"{engine} divides a model over dp, fsdp and tp, but the mesh has {dim}_size={size}; use {dim}_size=1, "
                f"with dp, fsdp and tp sizes that multiply to the group's size, {mesh.world_size}"
            )
    if mesh.sequence_parallel:
        raise ValueError(f"{engine} has no sequence parallelism; use sequence_parallel=False")


def _start_process_group(engine: str, worker: WorkerContext, device: torch.device) -> None:
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
