"""Parts of torch beyond its public interface that this package uses, each with the reason.

`tests/ray/test_torch_internals.py` fails when torch changes one of them; `pyproject.toml` bounds torch's version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from torch import Tensor


def gloo_options(device: Any, threads: int, timeout: timedelta) -> Any:
    """Options of a process group of Gloo that is made without the default group: only that one takes a device."""
    kind: Any = distributed_c10d.ProcessGroupGloo
    options = kind._Options()
    options._devices, options._threads, options._timeout = [device], threads, timeout
    return options


def strided_split(placement: object) -> tuple[int, int] | None:
    """The dim and the parts of a placement with separate rows, as FSDP over tensor parallel makes; else None."""
    from torch.distributed.tensor.placement_types import _StridedShard

    return (placement.dim, int(placement.split_factor)) if isinstance(placement, _StridedShard) else None


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors one by one in a single call: a loop in Python takes longer than thousands of small copies."""
    torch._foreach_copy_([*targets], [*sources])


def nccl_options(timeout: timedelta) -> Any:
    """Options of a process group of NCCL that is made without the default group: only that one takes a timeout."""
    kind: Any = distributed_c10d.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = timeout
    return options
