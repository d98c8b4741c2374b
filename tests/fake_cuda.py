"""Tensors that say that they are on a GPU, and hold their values on the host: for machines without one.

As on a GPU, an operation of tensors on two devices is an error, and `.cpu()` and `.to("cuda")` move them. Factories
with `device="cuda"` make such tensors inside `FakeCudaMode`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_Mode: Any = TorchDispatchMode  # torch has no types for it
_aten: Any = torch.ops.aten
_MOVE = {_aten._to_copy.default}
_MIXED = {_aten.copy_.default, _aten.index.Tensor, _aten.index_put_.default}  # these take tensors of the host, too


class FakeCuda(torch.Tensor):
    """A tensor "on" cuda:0."""

    values_of: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=torch.device("meta")
        )  # torch would look for a driver to index a tensor "on" cuda
        made.values_of = inner.detach()
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # a member without a type in torch's stub
        return torch.device("cuda", 0)

    def tolist(self) -> Any:
        return self.values_of.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # as above
        return _run(func, args, kwargs or {})


class FakeCudaMode(_Mode):  # type: ignore[misc]  # as above
    """Inside, tensors that are made on "cuda", or moved there, are fake ones."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    found: list[Any] = []
    tree_map(lambda value: found.append(value) if isinstance(value, torch.Tensor) else None, (args, kwargs))
    fake = any(isinstance(value, FakeCuda) for value in found)
    own = [value for value in found if not isinstance(value, FakeCuda) and value.ndim]
    if fake and own and func not in _MIXED:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got cuda:0 and cpu")
    device = kwargs.get("device")
    wanted = fake if device is None else torch.device(device).type == "cuda"
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if func in _MOVE and fake and not wanted:
        return func(args[0].values_of, **kwargs)
    plain_args, plain_kwargs = tree_map(_inner, (args, kwargs))
    result = func(*plain_args, **plain_kwargs)
    if func is _aten.copy_.default:
        return args[0]
    return tree_map(_outer, result) if wanted else result


def _inner(value: Any) -> Any:
    return value.values_of if isinstance(value, FakeCuda) else value


def _outer(value: Any) -> Any:
    return FakeCuda(value) if isinstance(value, torch.Tensor) else value


def fake_cuda(value: torch.Tensor) -> torch.Tensor:
    """The tensor "on" a GPU."""
    made: torch.Tensor = FakeCuda(value.clone())
    return made
