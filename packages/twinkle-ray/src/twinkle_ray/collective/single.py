"""A collective of one process without a process group, so that a program also runs without torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch.distributed import ReduceOp

from twinkle_ray.collective.base import Collective

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class SingleProcessCollective(Collective):
    """A collective of one rank: every operation returns its input.

    Args:
        device_type: "cuda", "mps" or "cpu".
    """

    def __init__(self, device_type: str = "cpu") -> None:
        super().__init__(0, 1)
        self._device = torch.device("cuda:0" if device_type == "cuda" else device_type)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank 0 alone."""
        return (0,)

    @property
    def local(self) -> Self:
        """Itself."""
        return self

    @property
    def tp_world(self) -> Self:
        """Itself."""
        return self

    @property
    def tp_mesh(self) -> DeviceMesh | None:
        """None: a mesh needs a process group."""
        return None

    @property
    def dp_mesh(self) -> DeviceMesh | None:
        """None: a mesh needs a process group."""
        return None

    @property
    def local_rank(self) -> int:
        """0."""
        return 0

    @property
    def default_device(self) -> torch.device:
        """The device of this process."""
        return self._device

    @property
    def process_group(self) -> ProcessGroup | None:
        """None."""
        return None

    def close(self) -> None:
        """Do nothing: there is no process group."""

    def barrier(self) -> None:
        """Do nothing: there is no other rank."""

    def all_reduce(self, tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
        """Leave the tensor as it is."""

    def all_gather(self, output_tensor: Tensor, input_tensor: Tensor) -> None:
        """Copy the input."""
        self._check_gather(output_tensor, input_tensor)
        with torch.no_grad():
            output_tensor.copy_(input_tensor.view(output_tensor.shape))

    def all_gather_to_list(self, output_tensors: list[Tensor], input_tensor: Tensor) -> None:
        """Copy the input."""
        self._check_gather_list(output_tensors, input_tensor)
        with torch.no_grad():
            output_tensors[0].copy_(input_tensor)

    def all_gather_objects(self, object: object) -> list[object]:  # noqa: A002 - the name is the seed's contract
        """The object in a list."""
        return [object]

    def broadcast(self, tensor: Tensor, source_rank: int = 0) -> None:
        """Leave the tensor as it is."""
        self._check_source(source_rank)

    def broadcast_objects(self, objects: list[object], source_rank: int = 0) -> None:
        """Leave the objects as they are."""
        self._check_source(source_rank)

    def __repr__(self) -> str:
        return f"SingleProcessCollective(device={self._device})"
