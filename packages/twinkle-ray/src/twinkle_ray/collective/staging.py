"""Tensors in a form that torch's collectives take, and a check of reductions before any rank runs them."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllreduceOptions, ProcessGroupGloo

from twinkle_ray.torch_internals import gloo_options

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ReduceOp


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor in contiguous memory of a device that has collectives.

    It stays on its own device, except that mps has no collectives: there it is copied to the CPU.
    """
    plain = tensor.detach()
    if not is_plain(plain):
        return plain
    return (plain.cpu() if plain.device.type == "mps" else plain).resolve_conj().resolve_neg().contiguous()


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor in one dimension; operations that only move data then take any dtype."""
    # a dim of one element has any stride in a contiguous tensor, and torch views bytes of the stride 1 alone
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8) if is_plain(tensor) else tensor


def is_plain(tensor: Tensor) -> bool:
    """Whether the layout of a tensor is strided."""
    return tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"


def copy_back(tensor: Tensor, staged: Tensor) -> None:
    """Copy the values of the staged tensor back to the tensor."""
    if staged.data_ptr() != tensor.data_ptr() or staged.device != tensor.device:
        with torch.no_grad():
            tensor.copy_(staged)


def check_reduction(tensor: Tensor, op: ReduceOp.RedOpType, backend: str) -> None:
    """Check that Gloo has a reduction; its own error would look like the error of a lost peer.

    Raises:
        ValueError: Gloo does not have it; the message has its reason.
    """
    if "gloo" not in backend or tensor.device.type == "cuda" or not is_plain(tensor) or tensor.is_complex():
        return
    reason = _refusal(tensor.dtype, op)
    if reason:
        kind = str(tensor.dtype).removeprefix("torch.")
        name = str(op).rpartition(".")[2]
        raise ValueError(f"all_reduce {name} of {kind} over Gloo: {reason}; convert the tensor, or use another op")


@cache
def _refusal(dtype: torch.dtype, op: ReduceOp.RedOpType) -> str:
    """Why Gloo refuses a reduction, tried in a group of this process alone; empty if it does not."""
    options = AllreduceOptions()
    options.reduceOp = dist.ReduceOp(op)
    try:
        _alone().allreduce([torch.zeros(1, dtype=dtype)], options).wait()
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error).partition("\n")[0]
    return ""


@cache
def _alone() -> Any:  # the stub lacks its operations
    device = ProcessGroupGloo.create_device(hostname="127.0.0.1")
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, and not exported
    return ProcessGroupGloo(store, 0, 1, gloo_options(device, 1, timedelta(seconds=30)))
