"""Collectives over the ranks of a launched program, its nodes and tensor parallel groups, on torch's meshes."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from twinkle_ray.collective.base import Collective
from twinkle_ray.collective.launcher import device_index, launched

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor
    from torch.distributed import ProcessGroup

DEVICE_TYPES = ("cuda", "cpu", "mps")
BACKEND_OF_GPUS = "cpu:gloo,cuda:nccl"
_opened = count()  # the same number on every rank: all open the default group equally often


class Meshes(NamedTuple):
    """The meshes of a collective.

    Attributes:
        parallel_mesh: 3D mesh with dims (dp_replicate, dp_shard, tp).
        physical_mesh: 2D mesh with dims (nodes, local_ranks).
    """

    parallel_mesh: DeviceMesh
    physical_mesh: DeviceMesh


class MeshCollective(Collective):
    """Collectives over process groups, with a mesh of (dp_replicate, dp_shard, tp) and one of (nodes, local_ranks).

    tp is innermost and within a node; dp_shard is sharded data parallelism, by default within a node; dp_replicate is
    what is left. An existing default process group is used. Without one, it is initialised from the environment, with
    NCCL for tensors of CUDA and Gloo for those of hosts. Every rank must construct the object. An operation waits until
    every rank has entered it; `timeout` ends the wait with torch's error.

    Args:
        rank: Rank of this process in `process_group`, or in the default group without one.
        world_size: Number of ranks of that group.
        local_world_size: Number of processes of a node.
        local_rank: Rank of this process within its node.
        device_type: "cuda", "cpu" or "mps"; collectives of "mps" are those of the CPU.
        mesh: Existing meshes; None builds them over the default group.
        process_group: Ranks that the operations run over; the default group when None. It needs `mesh`.
        tp_size: Tensor parallel ranks; divides local_world_size.
        sharding_world_size: Ranks of a sharding group; by default what tp leaves of a node.
        timeout: Seconds after which an operation without a peer fails; None for torch's default.

    Raises:
        ValueError: Sizes do not divide, or ranks and groups do not fit; the message says which values to use.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        local_world_size: int,
        local_rank: int,
        device_type: str,
        mesh: Meshes | None = None,
        process_group: ProcessGroup | None = None,
        tp_size: int = 1,
        sharding_world_size: int | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        super().__init__(rank, world_size, device_type)
        if device_type not in DEVICE_TYPES:
            raise ValueError(f"device_type={device_type!r} is none of {', '.join(map(repr, DEVICE_TYPES))}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        self._local_rank, self._local_world_size = local_rank, local_world_size
        self._timeout = None if timeout is None else timedelta(seconds=timeout)
        self._created: list[ProcessGroup] = []
        self._is_view = False
        if mesh is None:
            shape = _parallel_shape(world_size, local_world_size, tp_size, sharding_world_size)
            if rank % local_world_size != local_rank:
                raise ValueError(
                    f"rank={rank} cannot be local_rank={local_rank} where ranks count node by node, "
                    f"{local_world_size} on each: use local_rank={rank % local_world_size}"
                )
            if process_group is not None:
                raise ValueError("process_group= needs mesh=, the meshes of the ranks around it")
            self._open()
            mesh = self._build(shape)
        self._mesh = mesh
        if tp_size not in (1, self.tp_world_size):
            raise ValueError(f"tp_size={tp_size} is not the tp size {self.tp_world_size} of the mesh that was given")
        group = dist.group.WORLD if process_group is None else process_group
        assert group is not None
        if (dist.get_rank(group), dist.get_world_size(group)) != (rank, world_size):
            raise ValueError(
                f"rank={rank} of world_size={world_size} does not fit the process group, where this process is rank "
                f"{dist.get_rank(group)} of {dist.get_world_size(group)}"
            )
        self._process_group = group
        self._ranks = tuple(dist.get_process_group_ranks(group))

    @classmethod
    def from_env(
        cls,
        tp_size: int = 1,
        *,
        device_type: str | None = None,
        sharding_world_size: int | None = None,
        timeout: float | None = None,
    ) -> Self:
        """The collective of all processes of a launched program; it reads the variables of the launcher.

        Args:
            tp_size: As for the class, and so are the others.
            device_type: None is "cuda" if this process sees a GPU, else "cpu".
            sharding_world_size: Ranks of a sharding group.
            timeout: Seconds after which an operation without a peer fails.

        Raises:
            ValueError: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR or MASTER_PORT is missing.
        """
        place = launched()
        kind = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
        sizes: dict[str, Any] = {"tp_size": tp_size, "sharding_world_size": sharding_world_size, "timeout": timeout}
        return cls(place.rank, place.world_size, place.local_world_size, place.local_rank, kind, **sizes)

    def _open(self) -> None:
        """Initialise the default group from the environment, if there is none.

        No device is bound to it: torch would then split NCCL's communicator for each further group on every rank. A
        store outlives its group, so each group gets a part of it of its own.
        """
        if self._device_type == "cuda":
            torch.cuda.set_device(self.default_device)
        if dist.is_initialized():
            return
        limit = self._timeout or default_pg_timeout
        store, _, _ = next(rendezvous("env://", self._rank, self._world_size, timeout=limit))
        store.set_timeout(limit)
        dist.init_process_group(
            backend=BACKEND_OF_GPUS if self._device_type == "cuda" else "gloo",
            store=PrefixStore(f"twinkle/{next(_opened)}", store),
            rank=self._rank,
            world_size=self._world_size,
            timeout=self._timeout,
        )
        assert dist.group.WORLD is not None
        self._created.append(dist.group.WORLD)

    def _build(self, shape: tuple[int, int, int]) -> Meshes:
        if dist.get_world_size() != self._world_size:
            raise ValueError(
                f"world_size={self._world_size} does not fit the default process group of {dist.get_world_size()} "
                "ranks: give mesh= and process_group= for a part of them"
            )
        kind = "cuda" if self._device_type == "cuda" else "cpu"
        nodes = self._world_size // self._local_world_size, self._local_world_size
        made = Meshes(
            init_device_mesh(kind, shape, mesh_dim_names=("dp_replicate", "dp_shard", "tp")),
            init_device_mesh(kind, nodes, mesh_dim_names=("nodes", "local_ranks")),
        )
        for group in (*made.parallel_mesh.get_all_groups(), *made.physical_mesh.get_all_groups()):
            if group is not dist.group.WORLD and group not in self._created:
                self._created.append(group)
                if self._timeout is not None:
                    group.set_timeout(self._timeout)
        return made

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the default group in this collective, in the order of this collective."""
        return self._ranks

    @property
    def tp_mesh(self) -> DeviceMesh | None:
        """Torch's mesh of the tensor parallel group; None if the mesh has no dim tp."""
        parallel = self._mesh.parallel_mesh
        return parallel["tp"] if "tp" in (parallel.mesh_dim_names or ()) else None

    @property
    def dp_mesh(self) -> DeviceMesh:
        """Torch's mesh (dp_replicate, dp_shard)."""
        return self._mesh.parallel_mesh["dp_replicate", "dp_shard"]

    @property
    def local(self) -> MeshCollective:
        """The ranks of this collective that are on this process's node."""
        return self if self._is_view else self._view(self._mesh.physical_mesh.get_group("local_ranks"))

    @property
    def tp_world(self) -> MeshCollective:
        """The ranks of this process's tensor parallel group."""
        return self._view(self._mesh.parallel_mesh.get_group("tp"))

    def _view(self, group: ProcessGroup) -> MeshCollective:
        """A collective over ranks of one node, with the meshes of this one; it destroys no group."""
        made = MeshCollective(
            dist.get_rank(group),
            dist.get_world_size(group),
            self._local_world_size,
            self._local_rank,
            self._device_type,
            mesh=self._mesh,
            process_group=group,
        )
        made._is_view = True
        return made

    @property
    def local_rank(self) -> int:
        """Rank of this process among those of its node."""
        return self._local_rank

    @property
    def default_device(self) -> torch.device:
        """The device of this process: cuda:local_rank, or the first GPU of its own; mps; cpu."""
        if self._device_type != "cuda":
            return torch.device(self._device_type)
        return torch.device("cuda", device_index(self._local_rank, torch.cuda.device_count()))

    @property
    def process_group(self) -> ProcessGroup:
        """Torch's process group of this collective."""
        return self._process_group

    def close(self) -> None:
        """Destroy the process groups that this object opened, the default one included; a second call does nothing.

        `local` and `tp_world` opened none: they are parts of this one, and end with it.
        """
        created, self._created = self._created, []
        for group in reversed(created):  # the default one, which the others need, comes last
            dist.destroy_process_group(group)

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        dist.barrier(group=self._process_group)

    def all_reduce(self, tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
        """Reduce a tensor over all ranks, in place."""
        dist.all_reduce(tensor, op, group=self._process_group)

    def all_gather(self, output_tensor: Tensor, input_tensor: Tensor) -> None:
        """Gather the tensors of all ranks into one tensor, in rank order, one after the other or stacked."""
        _gather(output_tensor.view(-1), input_tensor.view(-1), group=self._process_group)

    def all_gather_to_list(self, output_tensors: list[Tensor], input_tensor: Tensor) -> None:
        """Gather the tensors of all ranks into a list of tensors."""
        dist.all_gather(output_tensors, input_tensor, group=self._process_group)

    def all_gather_objects(self, object: object) -> list[object]:  # noqa: A002 - the name is the seed's contract
        """The objects of all ranks, in rank order; they must pickle."""
        gathered: list[Any] = [None] * self._world_size
        dist.all_gather_object(gathered, object, group=self._process_group)
        return gathered

    def broadcast(self, tensor: Tensor, source_rank: int = 0) -> None:
        """Copy the tensor of one rank of this collective to all ranks, in place."""
        dist.broadcast(tensor, self._source(source_rank), group=self._process_group)

    def broadcast_objects(self, objects: list[object], source_rank: int = 0) -> None:
        """Copy the objects of one rank of this collective to all ranks, in place; they must pickle."""
        dist.broadcast_object_list(objects, self._source(source_rank), group=self._process_group)

    def _source(self, source_rank: int) -> int:
        """A rank of this collective as a rank of the default group, which torch asks for."""
        self._check_source(source_rank)
        return self._ranks[source_rank]

    def __repr__(self) -> str:
        return f"MeshCollective(rank={self._rank}/{self._world_size}, ranks={list(self._ranks)}, mesh={self._mesh})"


def _parallel_shape(
    world_size: int, local_world_size: int, tp_size: int, sharding_world_size: int | None
) -> tuple[int, int, int]:
    """Sizes of (dp_replicate, dp_shard, tp); without a size, dp_shard fills a node.

    Raises:
        ValueError: With the rule, the values and what to use.
    """
    _check_divides("local_world_size", local_world_size, "world_size", world_size)
    _check_divides("tp_size", tp_size, "local_world_size", local_world_size)
    shard = local_world_size // tp_size if sharding_world_size is None else sharding_world_size
    _check_divides("sharding_world_size", shard, "world_size // tp_size", world_size // tp_size)
    return world_size // (shard * tp_size), shard, tp_size


def _check_divides(name: str, value: int, whole_name: str, whole: int) -> None:
    if value < 1 or whole % value:
        fitting = ", ".join(str(size) for size in range(1, whole + 1) if whole % size == 0)
        raise ValueError(f"{name}={value} does not divide {whole_name}={whole}; use {fitting}")


# torch 2.13 renames all_gather_into_tensor, and warns about the old name; the lowest version, 2.12, has only that one
_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
