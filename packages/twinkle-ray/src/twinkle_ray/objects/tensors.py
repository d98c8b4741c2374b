"""Torch tensors as numpy arrays of the same memory, which a reader opens in the object store without a copy.

A reader may write to a tensor, and no other process may see that. So a tensor is copied when it is opened, but only the
rows that its reader takes.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """The memory of a tensor as an array, with all that is needed to restore the tensor.

    Attributes:
        array: The same memory; unsigned integers of the same width where numpy does not know the dtype.
        dtype: Name of the torch dtype.
        device: Type of the device that it was on.
        requires_grad: Whether gradients are recorded for it.
    """

    array: NDArray[Any]
    dtype: str
    device: str
    requires_grad: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayForm, (self.array, self.dtype, self.device, self.requires_grad)


def array_form(value: torch.Tensor) -> ArrayForm | None:
    """The array form of a dense tensor; None for what has another (sparse, nested, quantized, meta, subclasses)."""
    torch = _torch()
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return None
    if value.is_nested:
        return None
    if value.device.type == "meta" or value.is_quantized or (value.is_complex() and value.is_conj()) or value.is_neg():
        return None
    plain = value.detach().cpu().contiguous()
    wide = _UNKNOWN_TO_NUMPY.get(str(plain.dtype).removeprefix("torch."))
    array = (plain if wide is None else plain.view(getattr(torch, wide))).numpy()
    return ArrayForm(array, str(value.dtype).removeprefix("torch."), value.device.type, value.requires_grad)


_UNKNOWN_TO_NUMPY = {
    "bfloat16": "int16",
    "complex32": "int32",
    "float4_e2m1fn_x2": "uint8",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}


def tensor(form: ArrayForm, start: int | None = None, stop: int | None = None) -> torch.Tensor:
    """A tensor of its own memory with the form's rows [start, stop), or all of them."""
    torch = _torch()
    rows = form.array if start is None else form.array[start:stop]
    own = torch.from_numpy(rows.copy(order="C"))
    if form.dtype in _UNKNOWN_TO_NUMPY:
        own = own.view(getattr(torch, form.dtype))
    if form.device != "cpu" and _available(form.device):
        own = own.to(form.device)
    return own.requires_grad_() if form.requires_grad else own  # type: ignore[no-any-return]  # torch comes by name


def reduce(value: torch.Tensor) -> tuple[Any, ...] | None:
    """Reduce a tensor anywhere inside a value; None where torch pickles it itself."""
    form = array_form(value)
    if form is None:
        return None
    if type(value).__name__ == "Parameter":
        return _parameter, (form,)
    return tensor, (form,)


def _parameter(form: ArrayForm) -> torch.Tensor:
    return _torch().nn.Parameter(tensor(form).detach(), requires_grad=form.requires_grad)  # type: ignore[no-any-return]  # as above


def _available(device: str) -> bool:
    module = getattr(_torch(), device, None)
    return module is not None and bool(module.is_available())


def _torch() -> Any:
    return importlib.import_module("torch")
