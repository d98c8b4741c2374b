"""Weights for an engine of vLLM: tensors in memory that its processes map too, and what has their workers take them."""

from __future__ import annotations

import logging
import math
import os
import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    _Row = tuple[str, str, list[int], int]

_ALIGNMENT = 256
_log = logging.getLogger("twinkle.engines")


class SharedWeights:
    """Tensors in one anonymous file of the kernel, which ends with the last process that has it open.

    Args:
        like: Tensors by name, whose shapes are taken, such as those of a model on the meta device. One that has two
            names, as a tied head has, has its memory once.
        dtype: Dtype of those of floating point; None for their own.

    Attributes:
        tensors: The tensors by name.
        description: Where they are, in plain values; good as long as these weights exist.
    """

    def __init__(self, like: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> None:
        starts: dict[int, int] = {}
        size = 0
        rows: list[_Row] = []
        for name, tensor in like.items():
            kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            if id(tensor) not in starts:
                starts[id(tensor)] = size
                size += -(-tensor.numel() * kind.itemsize // _ALIGNMENT) * _ALIGNMENT
            rows.append((name, str(kind).removeprefix("torch."), list(tensor.shape), starts[id(tensor)]))
        file = os.memfd_create("twinkle-weights")
        weakref.finalize(self, os.close, file)
        os.ftruncate(file, size)
        self.description: dict[str, Any] = {"path": f"/proc/{os.getpid()}/fd/{file}", "size": size, "rows": rows}
        self.tensors = tensors_in(mapped(self.description["path"], size), rows)


def mapped(path: str, size: int) -> Tensor:
    """The memory of `SharedWeights` in this process, as bytes."""
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8) if size else torch.empty(0)


def tensors_in(memory: Tensor, rows: Sequence[_Row]) -> dict[str, Tensor]:
    """The tensors of `SharedWeights` in its memory."""
    found = {}
    for name, kind, shape, start in rows:
        dtype: torch.dtype = getattr(torch, kind)
        stop = start + math.prod(shape) * dtype.itemsize
        found[name] = memory[start:stop].view(dtype).view(shape)
    return found


class TakesWeights:
    """A part of vLLM's workers, which it adds to them (`worker_extension_cls`)."""

    vllm_config: Any
    model_runner: Any
    _memory: Tensor | None = None

    def take_weights(self, path: str, size: int, rows: list[Any]) -> None:
        """Load all weights of a `SharedWeights`, of which an engine has one; vLLM packs them as after a start.

        Raises:
            ValueError: The model has parameters that they do not name.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        if self._memory is None:
            self._memory = mapped(path, size)
            if torch.cuda.is_available():
                _pin(self._memory)
        model, config = self.model_runner.get_model(), self.vllm_config.model_config
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(model)
            loaded: Any = model.load_weights(tensors_in(self._memory, rows).items())
            wanted = {name for name, _ in model.named_parameters()}
            missing = wanted - loaded if loaded is not None and config.quantization is None else set()
            if missing:
                raise ValueError(
                    f"the weights that were synced leave {len(missing)} parameters of vLLM's model as they were, such "
                    f"as {min(missing)}: Transformers gives them other names than vLLM reads"
                )
            finalize_layerwise_reload(model, config)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what is read has been read


def _pin(memory: Tensor) -> None:
    """Pin memory for the process's life: GPUs read it directly. Where the system has a limit, copies are slower."""
    cuda: Any = torch.cuda  # torch has no types for its runtime
    if code := int(cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)):
        _log.info("%d bytes of weights were not pinned (CUDA error %d): copies are slower", memory.nbytes, code)
