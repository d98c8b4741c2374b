"""The interface of collectives, and what they do in one process, without a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class Collective:
    """Collective operations among `world_size` ranks, of which this process is one; as it is, of this process alone.

    `rank`, `world_size` and every `source_rank` count within this collective. `dp_*`, `tp_*`, `local_rank` and
    `default_device` belong to the process, and are the same in all of its sub-collectives.

    Args:
        rank: Rank of this process in this collective, in [0, world_size - 1].
        world_size: Number of ranks in this collective.
        device_type: "cuda", "cpu" or "mps".

    Raises:
        ValueError: The rank is outside [0, world_size - 1].
    """

    def __init__(self, rank: int = 0, world_size: int = 1, device_type: str = "cpu") -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} is not in [0, world_size - 1] for world_size={world_size}")
        self._rank, self._world_size, self._device_type = rank, world_size, device_type

    @property
    def rank(self) -> int:
        """Rank of this process in this collective."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks in this collective."""
        return self._world_size

    @property
    def is_master(self) -> bool:
        """Whether this is rank 0 of this collective."""
        return self._rank == 0

    @property
    def ranks(self) -> Sequence[int]:
        """Ranks of the default group in this collective, in the order of this collective."""
        return (0,)

    @property
    def local(self) -> Collective:
        """The ranks of this collective that are on this process's node."""
        return self

    @property
    def tp_world(self) -> Collective:
        """The ranks of this process's tensor parallel group."""
        return self

    @property
    def tp_mesh(self) -> DeviceMesh | None:
        """Torch's mesh of the tensor parallel group; None without process groups."""
        return None

    @property
    def dp_mesh(self) -> DeviceMesh | None:
        """Torch's mesh (dp_replicate, dp_shard) of the data parallel group; None without process groups."""
        return None

    @property
    def local_rank(self) -> int:
        """Rank of this process among those of its node."""
        return 0

    @property
    def dp_rank(self) -> int:
        """Rank of this process among the data parallel ranks of all nodes."""
        mesh = self.dp_mesh
        return 0 if mesh is None else mesh.get_local_rank("dp_replicate") * mesh.size(1) + mesh.get_local_rank(1)

    @property
    def dp_world_size(self) -> int:
        """Number of data parallel ranks of all nodes."""
        return 1 if self.dp_mesh is None else self.dp_mesh.size()

    @property
    def tp_rank(self) -> int:
        """Rank of this process in its tensor parallel group."""
        return 0 if self.tp_mesh is None else self.tp_mesh.get_local_rank()

    @property
    def tp_world_size(self) -> int:
        """Size of a tensor parallel group."""
        return 1 if self.tp_mesh is None else self.tp_mesh.size()

    @property
    def default_device(self) -> torch.device:
        """The device of this process."""
        return torch.device("cuda:0" if self._device_type == "cuda" else self._device_type)

    @property
    def process_group(self) -> ProcessGroup | None:
        """Torch's process group; None without one."""
        return None

    def close(self) -> None:
        """Destroy the process groups that this object created, and no others; a second call does nothing."""

    def barrier(self) -> None:
        """Wait until every rank has called this."""

    def all_reduce(self, tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
        """Reduce a tensor of the same shape and dtype on every rank, in place, by SUM, AVG, MIN, MAX, PRODUCT, ..."""

    def all_gather(self, output_tensor: Tensor, input_tensor: Tensor) -> None:
        """Gather the tensors of all ranks into one tensor, in rank order.

        Args:
            output_tensor: Has world_size times as many elements: the inputs concatenated, or stacked.
            input_tensor: Same shape and dtype on every rank.
        """
        output_tensor.copy_(input_tensor.view(output_tensor.shape))

    def all_gather_to_list(self, output_tensors: list[Tensor], input_tensor: Tensor) -> None:
        """Gather the tensors of all ranks into a list of tensors, one for each rank, with the shape of the inputs."""
        output_tensors[0].copy_(input_tensor)

    def all_gather_objects(self, object: object) -> list[object]:  # noqa: A002 - the name is the seed's contract
        """The objects of all ranks, in rank order; they must pickle."""
        return [object]

    def broadcast(self, tensor: Tensor, source_rank: int = 0) -> None:
        """Copy the tensor of one rank of this collective to all ranks, in place."""
        self._check_source(source_rank)

    def broadcast_objects(self, objects: list[object], source_rank: int = 0) -> None:
        """Copy a list of as many objects of one rank of this collective to all ranks, in place; they must pickle."""
        self._check_source(source_rank)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_source(self, source_rank: int) -> None:
        if not 0 <= source_rank < self._world_size:
            raise ValueError(
                f"source_rank={source_rank} is not a rank of this collective, whose ranks are 0 to "
                f"{self._world_size - 1} (ranks {list(self.ranks)} of the default group)"
            )
