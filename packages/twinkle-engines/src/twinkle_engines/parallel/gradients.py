"""Gradients over all shards of a model: their sums over passes, their scale, their norm, and clipping by it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup


_APART = 1e-3
"""The share of a gradient's norm by which replicas may differ; all ranks get the same sums, so they are equal."""


class GradientSums:
    """Gradients since the last step, added up in at least float32: a sum in a shorter type soon stops growing.

    Args:
        parameters: This rank's part of all parameters that are trained.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._short = [one for one in parameters if one.dtype.itemsize < torch.float32.itemsize]
        self._sums: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def add(self) -> None:
        """Take over what a backward pass has left at parameters of a short type."""
        for parameter in self._short:
            if parameter.grad is None:
                continue
            if parameter in self._sums:
                self._sums[parameter] += parameter.grad
            else:
                self._sums[parameter] = parameter.grad.float()
            parameter.grad = None

    def of(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        """The sums of some parameters, where they have any."""
        found = [self._sums.get(parameter, parameter.grad) for parameter in parameters]
        return [sums for sums in found if sums is not None]

    def all(self) -> list[Tensor]:
        """All sums, each in memory of its own."""
        return self.of(self._parameters)

    def hand_over(self) -> None:
        """Give the optimizer the sums, rounded once to the parameters' types."""
        for parameter, sums in self._sums.items():
            parameter.grad = sums.to(parameter.dtype)

    def forget(self) -> None:
        """Begin anew."""
        self._sums.clear()
        for parameter in self._parameters:
            parameter.grad = None


@torch.no_grad()
def sum_partial(gradients: Iterable[Tensor], group: ProcessGroup) -> None:
    """Sum the gradients of parameters that each rank holds whole over the ranks of a group, in place."""
    for gradient in gradients:
        dist.all_reduce(gradient.to_local() if isinstance(gradient, DTensor) else gradient, group=group)


@torch.no_grad()
def check_replicas(
    named: Iterable[tuple[str, nn.Parameter]], sums: GradientSums, group: ProcessGroup, agree: Callable[[float], float]
) -> None:
    """Raise where ranks of a tp group have other gradients of a parameter that each of them holds whole.

    Between divided layers each rank sees its own part of the activations, so its gradient is a part of the whole.

    Args:
        named: This rank's trained parameters by name, in the same order on all ranks.
        sums: Their gradients.
        group: The tensor-parallel ranks.
        agree: The largest of all ranks' values; all ranks call this.

    Raises:
        ValueError: There is one, here or on another rank.
    """
    whole = [(name, found) for name, one in named if not _is_divided(one) for found in sums.of([one])]
    apart: list[str] = []
    if whole:
        seen = torch.stack([_traits(one.to_local() if isinstance(one, DTensor) else one) for _, one in whole])
        low, high = seen.clone(), seen.clone()
        dist.all_reduce(low, op=dist.ReduceOp.MIN, group=group)
        dist.all_reduce(high, op=dist.ReduceOp.MAX, group=group)
        differ = ((high - low).amax(1) > _APART * high[:, 0]).tolist()
        apart = [name for (name, _), other in zip(whole, differ, strict=True) if other]
    if agree(float(len(apart))):
        raise ValueError(
            f"the gradient of {apart[0] if apart else 'a parameter'} differs between ranks of tp, which hold it whole: "
            "it lies between divided layers, and Transformers' plan does not name it, so each rank has a part of its "
            "gradient; use tp_size=1, with fsdp, or train adapters with it"
        )


def _is_divided(parameter: nn.Parameter) -> bool:
    """Whether tp or ep divides a parameter; all ranks hold their shards of the others over dp and fsdp alone."""
    return isinstance(parameter, DTensor) and set(parameter.device_mesh.mesh_dim_names or ()) != {"dp", "fsdp"}


def _traits(gradient: Tensor) -> Tensor:
    """The norm of a gradient, and its product with numbers that differ for each element."""
    flat = gradient.double().flatten()
    waves = torch.arange(len(flat), device=flat.device, dtype=torch.float64).mul_(0.7).cos_()
    return torch.stack([flat.norm(), flat @ waves])


@torch.no_grad()
def scale(gradients: Iterable[Tensor], factor: float) -> None:
    """Multiply the gradients, in place."""
    for gradient in gradients:
        gradient.mul_(factor)


@torch.no_grad()
def clip(gradients: Sequence[Tensor], limit: float | None) -> float:
    """Scale the gradients so that their norm is at most the limit, and return the norm before.

    Args:
        gradients: This rank's part of all gradients; each is counted once, however many ranks hold it.
        limit: Largest norm; None does not clip. A norm that is not finite is not clipped.
    """
    groups: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(gradient.device_mesh if isinstance(gradient, DTensor) else None, []).append(gradient)
    norms = [_whole(get_total_norm(group)) for group in groups.values()]
    total = torch.linalg.vector_norm(torch.stack(norms)).item() if norms else 0.0
    if limit is not None and math.isfinite(total):
        scale(gradients, min(1.0, limit / (total + 1e-6)))  # torch's own rule
    return total


def local_parts(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """This rank's part of each tensor."""
    for one in tensors:
        own = one.detach()
        yield own.to_local() if isinstance(own, DTensor) else own


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
