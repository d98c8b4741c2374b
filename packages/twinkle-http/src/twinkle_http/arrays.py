"""Arrays and tensors as raw buffers; numpy and torch are loaded when the first one arrives."""

from __future__ import annotations

from typing import Any

from twinkle_http.errors import WireFormatError, WireTypeError


def array_parts(value: Any, where: str) -> tuple[list[Any], memoryview]:
    """The parts of a numpy array, [dtype, shape], and a view of its memory.

    Raises:
        WireTypeError: Its dtype holds Python objects or fields.
    """
    import numpy as np

    if value.dtype.hasobject or value.dtype.fields:
        raise WireTypeError(
            f"{where} is an array of dtype {value.dtype}, which cannot be sent: use numbers, "
            "booleans, bytes or text of a fixed width, or a list"
        )
    flat = np.ascontiguousarray(value).reshape(-1)
    return [value.dtype.str, list(value.shape)], memoryview(flat.view(np.uint8).data if flat.nbytes else b"")


def tensor_parts(value: Any, where: str) -> tuple[list[Any], memoryview]:
    """The parts of a torch tensor, [dtype, shape, requires_grad], and a view of its memory, copied from its device.

    Raises:
        WireTypeError: It is sparse, nested, quantized, or of the meta device.
    """
    import torch

    if value.is_nested or value.layout is not torch.strided or value.is_quantized or value.is_meta:
        kind = f"a {'nested ' if value.is_nested else ''}tensor of layout {value.layout} and dtype {value.dtype}"
        raise WireTypeError(f"{where} is {kind} on {value.device}, which cannot be sent: make it dense")
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    node = [str(value.dtype), list(value.shape), bool(value.requires_grad)]
    return node, memoryview(plain.view(torch.uint8).numpy() if plain.numel() else b"")


def to_array(dtype: object, shape: Any, buffer: Any) -> Any:
    """A numpy array over a buffer; numpy refuses what does not fit it, and Python objects."""
    import numpy as np

    if not isinstance(dtype, str):
        raise WireFormatError(f"{dtype!r:.80} is no dtype of an array on the wire")
    flat = np.frombuffer(buffer, dtype=dtype) if len(buffer) else np.empty(0, dtype)
    return flat.reshape(shape)


def to_tensor(dtype: object, shape: Any, requires_grad: bool, buffer: Any) -> Any:
    """A torch tensor over a buffer that can be written; what does not fit it is refused by torch."""
    import torch

    kind = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype):
        raise WireFormatError(f"{dtype!r:.80} is no dtype of torch on the wire")
    flat = torch.frombuffer(buffer, dtype=kind) if len(buffer) else torch.empty(0, dtype=kind)
    return flat.reshape(shape).requires_grad_(requires_grad)
