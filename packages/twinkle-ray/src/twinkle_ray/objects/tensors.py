"""Torch tensors as numpy arrays of the same memory, which a reader opens in the object store without a copy.

A tensor of a device comes to the host on the driver, always: a program that only steers has no tensors on its GPUs. On
a worker it comes to the worker's own device, where it has one of that type.

A reader may write to a tensor, and no other process may see that. So a tensor lies in a private mapping of its reader
(`segments.py`), or its reader copies it, but only the rows that it takes.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from twinkle_remote.protocol import Rows


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """The memory of a tensor as an array, with all that is needed to restore the tensor.

    Attributes:
        array: The same memory; unsigned integers of the same width where numpy does not know the dtype.
        dtype: Name of the torch dtype.
        device: Type of the device that it was on, such as "cuda".
        requires_grad: Whether gradients are recorded for it.
    """

    array: NDArray[Any]
    dtype: str
    device: str
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return self.array.nbytes

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


def tensor(form: ArrayForm, rows: Rows | None = None) -> torch.Tensor:
    """A tensor of its reader's own memory with rows of the form, or all of them."""
    torch = _torch()
    array = form.array
    if isinstance(rows, range) and rows.step == 1:
        array = array[rows.start : rows.stop]
    elif rows is not None:
        array = array[list(rows)]
    own = torch.from_numpy(own_array(array))
    if form.dtype in _UNKNOWN_TO_NUMPY:
        own = own.view(getattr(torch, form.dtype))
    own = _at_home(own, form.device)
    return own.requires_grad_() if form.requires_grad else own


def own_array(array: NDArray[Any]) -> NDArray[Any]:
    """An array that its reader may write: the same memory, where that is a private mapping, or a copy."""
    segments = sys.modules.get("twinkle_ray.objects.segments")
    found: NDArray[Any] = array.copy(order="C") if segments is None else segments.own(array)
    return found


def reduce(value: torch.Tensor) -> tuple[Any, ...] | None:
    """Reduce a tensor anywhere inside a value; None where torch pickles it itself."""
    form = array_form(value)
    if form is None:
        if value.device.type in ("cpu", "meta"):
            return None
        return _of_device, (value.detach().cpu(), value.device.type, value.requires_grad)
    if type(value).__name__ == "Parameter":
        return _parameter, (form,)
    return tensor, (form,)


def _parameter(form: ArrayForm) -> torch.Tensor:
    return _torch().nn.Parameter(tensor(form).detach(), requires_grad=form.requires_grad)  # type: ignore[no-any-return]  # as above


def _of_device(value: torch.Tensor, device: str, requires_grad: bool) -> torch.Tensor:
    """A tensor that has no array form, such as a sparse one, which was on a device."""
    found = _at_home(value, device)
    return found.requires_grad_() if requires_grad else found


def _at_home(value: torch.Tensor, device: str) -> torch.Tensor:
    """A tensor of the host on this process's device of a type; on the host if it has none, and on the driver."""
    return value.to(device) if _on_worker and device != "cpu" and _available(device) else value


def on_worker() -> None:
    """From now on, this process is a worker, whose tensors live on its devices."""
    global _on_worker
    _on_worker = True


_on_worker = False


def _available(device: str) -> bool:
    module = getattr(_torch(), device, None)
    return module is not None and bool(module.is_available())


def _torch() -> Any:
    return importlib.import_module("torch")
