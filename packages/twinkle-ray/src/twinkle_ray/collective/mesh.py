"""Collectives over the ranks of a launched program, and over its nodes, tensor parallel groups and meshes."""

from __future__ import annotations

import logging
import pickle
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from twinkle_ray.collective.base import Collective
from twinkle_ray.collective.diagnostics import Diagnostics, Signature
from twinkle_ray.collective.launcher import device_index, launched, own_device_type
from twinkle_ray.collective.opened import OPENED
from twinkle_ray.collective.process_groups import (
    PARALLEL,
    PHYSICAL,
    Meshes,
    build_mesh,
    check_local_rank,
    create_groups,
    groups_over,
    open_default_group,
    parallel_shape,
)
from twinkle_ray.collective.staging import as_bytes, check_reduction, contiguous, copy_back

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from twinkle_mesh import DeviceMesh as MeshValue

_log = logging.getLogger("twinkle.ray")
DEVICE_TYPES = ("cuda", "cpu", "mps")


class MeshCollective(Collective):
    """Collectives over process groups, with a mesh of (dp_replicate, dp_shard, tp) and one of (nodes, local_ranks).

    tp is innermost and within a node; dp_shard is sharded data parallelism, by default within a node; dp_replicate is
    what is left. An existing default process group is used. Without one, it is initialised from the environment, with
    NCCL for tensors of CUDA and Gloo for those of hosts. Every rank must construct the object. `local` and `tp_world`
    need no further communication.

    Args:
        rank: Rank of this process in `process_group`, or in the default group without one.
        world_size: Number of ranks of that group.
        local_world_size: Number of processes of a node.
        local_rank: Rank of this process within its node.
        device_type: "cuda", "cpu" or "mps"; collectives of mps tensors run on the CPU.
        mesh: Existing meshes; None builds them.
        process_group: Ranks that the operations run over; the default group when None.
        tp_size: Tensor parallel ranks; divides local_world_size.
        sharding_world_size: Ranks of a sharding group; by default what tp leaves of a node.
        timeout: Seconds after which an operation without a peer fails; None for torch's default.
        debug: Compare operation, shape and dtype over all ranks before each operation. A mismatch or a missing rank
            is then an error on every rank.

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
        debug: bool = False,
    ) -> None:
        super().__init__(rank, world_size)
        if device_type not in DEVICE_TYPES:
            raise ValueError(f"device_type={device_type!r} is none of {', '.join(map(repr, DEVICE_TYPES))}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        self._device_type, self._local_rank, self._local_world_size = device_type, local_rank, local_world_size
        self._timeout = None if timeout is None else timedelta(seconds=timeout)
        self._debug = debug
        self._created: list[ProcessGroup] = []
        self._is_view = False
        self._views: dict[tuple[int, ...], MeshCollective] = {}
        self._over: dict[tuple[tuple[int, ...], ...], tuple[ProcessGroup | None, ProcessGroup | None]] = {}
        if mesh is None:
            shape = parallel_shape(world_size, local_world_size, tp_size, sharding_world_size)
            check_local_rank(rank, local_rank, local_world_size)
            self._join()
            mesh = self._build(process_group, shape)
        self._mesh = mesh
        parallel, physical = mesh.parallel_mesh, mesh.physical_mesh
        sizes = dict(zip(parallel.mesh_dim_names or (), parallel.shape, strict=True))
        if tp_size not in (1, sizes.get("tp", 1)):
            raise ValueError(f"tp_size={tp_size} is not the tp size {sizes.get('tp', 1)} of the mesh that was given")
        group = dist.group.WORLD if process_group is None else process_group
        assert group is not None
        if (dist.get_rank(group), dist.get_world_size(group)) != (rank, world_size):
            raise ValueError(
                f"rank={rank} of world_size={world_size} does not fit the process group, where this process is rank "
                f"{dist.get_rank(group)} of {dist.get_world_size(group)}"
            )
        self._process_group = group
        self._ranks = tuple(dist.get_process_group_ranks(group))
        rows = physical.mesh.reshape(-1, physical.mesh.shape[-1]).tolist()
        self._node_of = {int(rank): node for node, row in enumerate(rows) for rank in row}
        one_node = len({self._node_of.get(member) for member in self._ranks}) == 1
        self._local_group = None if one_node else physical.get_group(physical.ndim - 1)
        self._guard = Diagnostics(group, self._ranks, rank, self._timeout, debug=debug)
        OPENED.use(self, (group, *parallel.get_all_groups(), *physical.get_all_groups()))

    @classmethod
    def from_env(
        cls,
        tp_size: int = 1,
        *,
        device_type: str | None = None,
        sharding_world_size: int | None = None,
        timeout: float | None = None,
        debug: bool = False,
    ) -> Self:
        """The collective of all processes of a launched program; it reads the variables of the launcher.

        Args:
            tp_size: As for the class, and so are the others.
            device_type: None is "cuda" if this process sees a GPU, else "cpu".
            sharding_world_size: Ranks of a sharding group.
            timeout: Seconds after which an operation without a peer fails.
            debug: Compare the operations of all ranks before they run.

        Raises:
            ValueError: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR or MASTER_PORT is missing.
        """
        place = launched()
        return cls(
            place.rank,
            place.world_size,
            place.local_world_size,
            place.local_rank,
            own_device_type() if device_type is None else device_type,
            tp_size=tp_size,
            sharding_world_size=sharding_world_size,
            timeout=timeout,
            debug=debug,
        )

    def _join(self) -> None:
        """Initialise the default group if there is none."""
        if self._device_type == "mps":
            _log.warning("mps has no collectives of its own: tensors travel over the CPU's")
        if self._device_type == "cuda":
            torch.cuda.set_device(self.default_device)
        if not dist.is_initialized():
            on_gpus = self._device_type == "cuda"
            opened = open_default_group(self._rank, self._world_size, self._timeout, on_gpus=on_gpus)
            self._created.append(opened)

    def _build(self, process_group: ProcessGroup | None, shape: tuple[int, int, int]) -> Meshes:
        ranks = list(range(dist.get_world_size()))
        if process_group is not None:
            ranks = dist.get_process_group_ranks(process_group)
        if len(ranks) != self._world_size:
            raise ValueError(f"world_size={self._world_size} is not the {len(ranks)} ranks of the process group")
        nodes = (self._world_size // self._local_world_size, self._local_world_size)
        return Meshes(self._torch_mesh(ranks, shape, PARALLEL), self._torch_mesh(ranks, nodes, PHYSICAL))

    def _torch_mesh(self, ranks: Sequence[int], shape: Sequence[int], names: Sequence[str]) -> DeviceMesh:
        device_type = "cuda" if self._device_type == "cuda" else "cpu"
        return build_mesh(ranks, shape, names, device_type=device_type, timeout=self._timeout, created=self._created)

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
        if self._local_group is None:
            return self if self._is_view else self._view(self._process_group)
        return self._view(self._local_group)

    @property
    def tp_world(self) -> MeshCollective:
        """The ranks of this process's tensor parallel group."""
        return self._view(self._mesh.parallel_mesh.get_group("tp"))

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
    def process_group(self) -> ProcessGroup | None:
        """Torch's process group of this collective."""
        return self._process_group

    def over(self, mesh: MeshValue | DeviceMesh, dims: str | Sequence[str]) -> MeshCollective:
        """A collective of the ranks that differ from this one only in some dims of a mesh.

        Every rank of the default group must call this with an equal mesh, and all ranks create the groups in one order.
        A second call with the same mesh and dims creates none.

        Args:
            mesh: A twinkle or a torch mesh; its ranks are ranks of the default group.
            dims: One dim or several; several dims form one group, the first outermost.

        Raises:
            ValueError: There is no such dim, or this rank is outside the mesh.
        """
        names = (dims,) if isinstance(dims, str) else tuple(dims)
        groups = groups_over(mesh, names)
        own = dist.get_rank()
        key = tuple(map(tuple, groups))
        if key not in self._over:
            nodes = [part for group in groups for part in self._by_node(group)]
            name = "+".join(names)
            self._over[key] = (
                create_groups(groups, timeout=self._timeout, name=name, created=self._created),
                create_groups(nodes, timeout=self._timeout, name=f"{name}.local", created=self._created),
            )
        group, local = self._over[key]
        if group is None:
            listing = sorted(rank for ranks in groups for rank in ranks)
            raise ValueError(f"rank {own} is outside the mesh, whose ranks are {listing}")
        return self._view(group, local)

    def close(self) -> None:
        """Destroy the process groups that this object opened, the default one included; a second call does nothing.

        A group that another collective uses exists until that collective is closed too. Closing `local`, `tp_world` or
        a result of `over` destroys nothing: they are parts of this one, and end with it.
        """
        if not self._is_view:
            created, self._created = self._created, []
            OPENED.close(self, created)

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        with self._guard(Signature("barrier")):
            dist.barrier(group=self._process_group)

    def all_reduce(self, tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
        """Reduce a tensor over all ranks, in place."""
        check_reduction(tensor, op, dist.get_backend(self._process_group))
        staged = contiguous(tensor)
        with self._guard(Signature.of(f"all_reduce {op}", tensor)):
            dist.all_reduce(staged, op, group=self._process_group)
        copy_back(tensor, staged)

    def all_gather(self, output_tensor: Tensor, input_tensor: Tensor) -> None:
        """Gather the tensors of all ranks into one tensor, in rank order."""
        self._check_gather(output_tensor, input_tensor)
        staged, given = contiguous(output_tensor), contiguous(input_tensor)
        with self._guard(Signature.of("all_gather", input_tensor)):
            _gather(as_bytes(staged), as_bytes(given), group=self._process_group)
        copy_back(output_tensor, staged)

    def all_gather_to_list(self, output_tensors: list[Tensor], input_tensor: Tensor) -> None:
        """Gather the tensors of all ranks into a list of tensors."""
        self._check_gather_list(output_tensors, input_tensor)
        staged, given = [contiguous(tensor) for tensor in output_tensors], contiguous(input_tensor)
        with self._guard(Signature.of("all_gather_to_list", input_tensor)):
            dist.all_gather([as_bytes(part) for part in staged], as_bytes(given), group=self._process_group)
        for tensor, part in zip(output_tensors, staged, strict=True):
            copy_back(tensor, part)

    def all_gather_objects(self, object: object) -> list[object]:  # noqa: A002 - the name is the seed's contract
        """The objects of all ranks, in rank order; they must pickle."""
        gathered: list[Any] = [None] * self._world_size
        pickled = pickle.dumps(object)  # outside of the operation: an error of the object is not an error of a peer
        with self._guard(Signature("all_gather_objects")):
            dist.all_gather_object(gathered, pickled, group=self._process_group)
        return [pickle.loads(each) for each in gathered]

    def broadcast(self, tensor: Tensor, source_rank: int = 0) -> None:
        """Copy the tensor of one rank of this collective to all ranks, in place."""
        self._check_source(source_rank)
        source = self._ranks[source_rank]
        staged = contiguous(tensor)
        with self._guard(Signature.of(f"broadcast from {source_rank}", tensor)):
            dist.broadcast(as_bytes(staged), source, group=self._process_group)
        copy_back(tensor, staged)

    def broadcast_objects(self, objects: list[object], source_rank: int = 0) -> None:
        """Copy the objects of one rank of this collective to all ranks, in place; they must pickle."""
        self._check_source(source_rank)
        source = self._ranks[source_rank]
        mine = self._rank == source_rank
        pickled: list[Any] = [pickle.dumps(each) if mine else None for each in objects]
        with self._guard(Signature(f"broadcast_objects from {source_rank}", f"{len(objects)} objects")):
            dist.broadcast_object_list(pickled, source, group=self._process_group)
        if not mine:
            objects[:] = [pickle.loads(each) for each in pickled]

    def _by_node(self, ranks: Sequence[int]) -> list[list[int]]:
        """The ranks of a group on each node, in order; empty if all ranks are on one node."""
        nodes: dict[int, list[int]] = {}
        for rank in ranks:
            nodes.setdefault(self._node_of.get(rank, -1 - rank), []).append(rank)
        return list(nodes.values()) if len(nodes) > 1 else []

    def _view(self, group: ProcessGroup, local: ProcessGroup | None = None) -> MeshCollective:
        """A collective over another group, with the meshes of this one; it destroys no group.

        Args:
            group: The other group.
            local: The group of its ranks on this node; None if all of its ranks are on this node.
        """
        ranks = tuple(dist.get_process_group_ranks(group))
        found = self._views.get(ranks)
        if found is None or found._process_group is not group:
            found = MeshCollective(
                rank=dist.get_rank(group),
                world_size=len(ranks),
                local_world_size=self._local_world_size,
                local_rank=self._local_rank,
                device_type=self._device_type,
                mesh=self._mesh,
                process_group=group,
                tp_size=self.tp_world_size,
                timeout=None if self._timeout is None else self._timeout.total_seconds(),
                debug=self._debug,
            )
            found._local_group = local
            found._is_view = True
            OPENED.leave(found)
            found._guard = self._guard if group is self._process_group else found._guard
            self._views[ranks] = found
        return found

    def __repr__(self) -> str:
        kind = "global" if self._process_group is dist.group.WORLD else "sub"
        return (
            f"MeshCollective(rank={self._rank}/{self._world_size}, {kind} group of ranks {list(self._ranks)}, "
            f"tp_size={self.tp_world_size}, mesh={self._mesh.parallel_mesh})"
        )


# torch 2.13 renames all_gather_into_tensor, and warns about the old name; the lowest version, 2.12, has only that one
_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
