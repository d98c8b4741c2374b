"""Gradients over all shards of a model: their scale, their norm, and clipping by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup


@torch.no_grad()
def sum_partial(parameters: Iterable[nn.Parameter], group: ProcessGroup) -> None:
    """Sum the gradients of parameters that each rank holds whole over the ranks of a group, in place."""
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = parameter.grad
            dist.all_reduce(gradient.to_local() if isinstance(gradient, DTensor) else gradient, group=group)


@torch.no_grad()
def scale(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply the gradients, in place."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


@torch.no_grad()
def clip(parameters: Sequence[nn.Parameter], limit: float | None) -> float:
    """Scale the gradients so that their norm is at most the limit, and return the norm before.

    Args:
        parameters: This rank's part of all parameters; each is counted once, however many ranks hold it.
        limit: Largest norm; None does not clip.
    """
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            mesh = parameter.grad.device_mesh if isinstance(parameter.grad, DTensor) else None
            groups.setdefault(mesh, []).append(parameter)
    norms = [_whole(get_total_norm([one.grad for one in group if one.grad is not None])) for group in groups.values()]
    total = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.tensor(0.0)
    if limit is not None:
        for group in groups.values():
            clip_grads_with_norm_(group, limit, total)
    return total.item()


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
