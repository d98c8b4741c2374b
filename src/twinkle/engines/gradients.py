"""Gradients over all shards of a model: their sums over passes, their scale, their norm, and clipping by it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup


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


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
