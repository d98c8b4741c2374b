"""Arrays and tensors as raw buffers; numpy and torch are loaded when the first one arrives."""

from __future__ import annotations

import re
from typing import Any

from twinkle_http.errors import WireFormatError, WireTypeError

_NUMPY_DTYPE = re.compile(
    r"[<>|=]?(?:[biufc][0-9]{1,2}|[SU][0-9]{1,9}|[mM]8\[[0-9]*(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])"
)
_TORCH_NAMES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
)
_TORCH_DTYPES = frozenset(f"torch.{name}" for name in _TORCH_NAMES)


def array_parts(value: Any, where: str) -> tuple[list[Any], memoryview]:
    """The parts of a numpy array, [dtype, shape], and a view of its memory.

    Raises:
        WireTypeError: Its dtype holds Python objects or fields.
    """
    import numpy as np

    dtype = value.dtype.str
    if value.dtype.hasobject or value.dtype.fields or not _NUMPY_DTYPE.fullmatch(dtype):
        raise WireTypeError(
            f"{where} is an array of dtype {value.dtype}, which cannot be sent: use numbers, "
            "booleans, bytes or text of a fixed width, or a list"
        )
    flat = np.ascontiguousarray(value).reshape(-1)
    return [dtype, list(value.shape)], memoryview(flat.view(np.uint8).data if flat.nbytes else b"")


def tensor_parts(value: Any, where: str) -> tuple[list[Any], memoryview]:
    """The parts of a torch tensor, [dtype, shape, requires_grad], and a view of its memory, copied from its device.

    Raises:
        WireTypeError: It is sparse, quantized, of the meta device, or of a dtype without a fixed layout.
    """
    import torch

    if value.is_nested or value.layout is not torch.strided or str(value.dtype) not in _TORCH_DTYPES:
        kind = f"a {'nested ' if value.is_nested else ''}tensor of layout {value.layout} and dtype {value.dtype}"
        raise WireTypeError(f"{where} is {kind}, which cannot be sent: make it dense")
    if value.is_meta:
        raise WireTypeError(f"{where} is a tensor of the meta device, which cannot be sent: it holds no values")
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    node = [str(value.dtype), list(value.shape), bool(value.requires_grad)]
    return node, memoryview(plain.view(torch.uint8).numpy() if plain.numel() else b"")


def to_array(dtype: object, shape: Any, buffer: Any) -> Any:
    """A numpy array over a buffer; what does not fit it is refused by numpy."""
    import numpy as np

    if not isinstance(dtype, str) or not _NUMPY_DTYPE.fullmatch(dtype):
        raise WireFormatError(f"{dtype!r:.80} is no dtype of an array on the wire")
    flat = np.frombuffer(buffer, dtype=dtype) if len(buffer) else np.empty(0, dtype)
    return flat.reshape(shape)


def to_tensor(dtype: object, shape: Any, buffer: Any) -> Any:
    """A torch tensor over a buffer that can be written; what does not fit it is refused by torch."""
    import torch

    kind = torch_dtype(dtype)
    flat = torch.frombuffer(buffer, dtype=kind) if len(buffer) else torch.empty(0, dtype=kind)
    return flat.reshape(shape)


def to_parameter(tensor: Any, requires_grad: bool) -> Any:
    """A parameter of torch."""
    from torch.nn import Parameter

    return Parameter(tensor, requires_grad)


def torch_dtype(name: object) -> Any:
    """A dtype of torch by its name; raises WireFormatError for others."""
    if name not in _TORCH_DTYPES:
        raise WireFormatError(f"{name!r:.80} is no dtype of torch on the wire")
    import torch

    return getattr(torch, str(name).removeprefix("torch."))
