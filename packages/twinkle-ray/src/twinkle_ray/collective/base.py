"""The interface of collectives, the same for many processes and for one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch.distributed import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class Collective(ABC):
    """Collective operations among `world_size` ranks, of which this process is one.

    `rank`, `world_size` and every `source_rank` count within this collective. `dp_*`, `tp_*`, `local_rank` and
    `default_device` belong to the process, and are the same in all of its sub-collectives.

    Args:
        rank: Rank of this process in this collective, in [0, world_size - 1].
        world_size: Number of ranks in this collective.

    Raises:
        ValueError: The rank is outside [0, world_size - 1].
    """

    def __init__(self, rank: int, world_size: int) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} is not in [0, world_size - 1] for world_size={world_size}")
        self._rank = rank
        self._world_size = world_size

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
    @abstractmethod
    def ranks(self) -> Sequence[int]:
        """Ranks of the default group in this collective, in the order of this collective."""

    @property
    @abstractmethod
    def local(self) -> Collective:
        """The ranks of this collective that are on this process's node."""

    @property
    @abstractmethod
    def tp_world(self) -> Collective:
        """The ranks of this process's tensor parallel group."""

    @property
    @abstractmethod
    def tp_mesh(self) -> DeviceMesh | None:
        """Torch's mesh of the tensor parallel group; None without process groups."""

    @property
    @abstractmethod
    def dp_mesh(self) -> DeviceMesh | None:
        """Torch's mesh (dp_replicate, dp_shard) of the data parallel group; None without process groups."""

    @property
    @abstractmethod
    def local_rank(self) -> int:
        """Rank of this process among those of its node."""

    @property
    def dp_rank(self) -> int:
        """Rank of this process among the data parallel ranks of all nodes."""
        mesh = self.dp_mesh
        if mesh is None:
            return 0
        return mesh.get_local_rank("dp_replicate") * mesh.size(1) + mesh.get_local_rank("dp_shard")

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
    @abstractmethod
    def default_device(self) -> torch.device:
        """The device of this process."""

    @property
    @abstractmethod
    def process_group(self) -> ProcessGroup | None:
        """Torch's process group; None without one."""

    @abstractmethod
    def close(self) -> None:
        """Destroy the process groups that this object created, and no others; a second call does nothing."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank has called this."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
        """Reduce a tensor over all ranks, in place.

        Args:
            tensor: Same shape and dtype on every rank.
            op: SUM, AVG, MIN, MAX, PRODUCT, ...; the backend of the process group must have it.
        """

    @abstractmethod
    def all_gather(self, output_tensor: Tensor, input_tensor: Tensor) -> None:
        """Gather the tensors of all ranks into one tensor, in rank order.

        Args:
            output_tensor: Has world_size times as many elements: the inputs concatenated, or stacked.
            input_tensor: Same shape and dtype on every rank.

        Raises:
            ValueError: Sizes or dtypes do not fit.
        """

    @abstractmethod
    def all_gather_to_list(self, output_tensors: list[Tensor], input_tensor: Tensor) -> None:
        """Gather the tensors of all ranks into a list of tensors.

        Args:
            output_tensors: One for each rank, in rank order, with the shape of the inputs.
            input_tensor: Same shape and dtype on every rank.

        Raises:
            ValueError: The length of the list, sizes or dtypes do not fit.
        """

    @abstractmethod
    def all_gather_objects(self, object: object) -> list[object]:  # noqa: A002 - the name is the seed's contract
        """The objects of all ranks, in rank order; they must pickle."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, source_rank: int = 0) -> None:
        """Copy the tensor of one rank to all ranks, in place.

        Args:
            tensor: Same shape and dtype on every rank.
            source_rank: Rank in this collective.

        Raises:
            ValueError: There is no such rank.
        """

    @abstractmethod
    def broadcast_objects(self, objects: list[object], source_rank: int = 0) -> None:
        """Copy the objects of one rank to all ranks, in place; they must pickle.

        Args:
            objects: A list of the same length on every rank.
            source_rank: Rank in this collective.

        Raises:
            ValueError: There is no such rank.
        """

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

    def _check_gather(self, output_tensor: Tensor, input_tensor: Tensor) -> None:
        expected = input_tensor.numel() * self._world_size
        if output_tensor.numel() != expected or output_tensor.dtype != input_tensor.dtype:
            raise ValueError(
                f"all_gather of {tuple(input_tensor.shape)} {input_tensor.dtype} over {self._world_size} ranks needs "
                f"{expected} elements of that dtype as output, got {tuple(output_tensor.shape)} {output_tensor.dtype}"
            )

    def _check_gather_list(self, output_tensors: list[Tensor], input_tensor: Tensor) -> None:
        shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in output_tensors]
        wanted = (tuple(input_tensor.shape), input_tensor.dtype)
        if len(shapes) != self._world_size or any(shape != wanted for shape in shapes):
            raise ValueError(
                f"all_gather_to_list over {self._world_size} ranks needs as many outputs of {wanted[0]} {wanted[1]}, "
                f"got {len(shapes)}: {', '.join(f'{shape} {dtype}' for shape, dtype in shapes[:4])}"
            )
