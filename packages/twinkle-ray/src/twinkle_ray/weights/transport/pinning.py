"""Memory of the host that GPUs copy from and to directly: several times as fast as memory that may be paged out."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

_cuda: Any = torch.cuda  # torch has no types for its runtime
_log = logging.getLogger("twinkle.ray")


def pin(buffer: Tensor, owner: object) -> bool:
    """Pin memory for as long as its owner lives.

    Args:
        buffer: Contiguous memory of the host, which outlives the owner.
        owner: The memory is free again when it ends.

    Returns:
        Whether it is pinned; where the system has a limit on pinned memory, copies are slower, and the log says so.
    """
    runtime = _cuda.cudart()
    code = int(runtime.cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0))
    if code:
        _log.info("%d bytes for a weight sync were not pinned (CUDA error %d): copies are slower", buffer.nbytes, code)
        return False
    weakref.finalize(owner, runtime.cudaHostUnregister, buffer.data_ptr())
    return True
