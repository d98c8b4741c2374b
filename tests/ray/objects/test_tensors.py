"""Where a tensor of a device arrives: on the host at the driver, on its own device at a worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from twinkle_ray.objects import tensors
from twinkle_ray.objects.pickling import pack

DTYPES = ["float32", "bfloat16", "float8_e4m3fn", "int64", "bool", "complex64"]


def _sent(value: torch.Tensor) -> tensors.ArrayForm:
    """The form of a tensor that was on a device; torch has one that every machine has, without values."""
    form = tensors.array_form(value)
    assert form is not None
    return tensors.ArrayForm(form.array, form.dtype, "meta", form.requires_grad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_at_the_driver_it_is_on_the_host_and_at_a_worker_on_its_device(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "_available", lambda device: True)
    value = torch.arange(6).view(3, 2).to(getattr(torch, dtype))
    for rows in (range(3), range(1, 3), range(0), (2, 0, 2)):
        found = tensors.tensor(_sent(value), rows)
        assert found.device.type == "cpu" and torch.equal(found, value[list(rows)])
    monkeypatch.setattr(tensors, "_on_worker", True)
    found = tensors.tensor(_sent(value))
    assert (found.device.type, found.dtype, found.shape) == ("meta", value.dtype, value.shape)
    monkeypatch.setattr(tensors, "_available", lambda device: False)
    assert torch.equal(tensors.tensor(_sent(value)), value)


class _OnGpu:
    """A tensor without an array form, which says that it is on a GPU; torch makes no such one without a driver."""

    requires_grad = False
    layout = torch.sparse_coo
    is_nested = is_quantized = False
    device = torch.device("cuda", 0)

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def detach(self) -> _OnGpu:
        return self

    def cpu(self) -> torch.Tensor:
        return self.value


def test_a_sparse_one_too() -> None:
    value = torch.eye(3).to_sparse()
    given: Any = _OnGpu(value)
    reduced = tensors.reduce(given)
    assert reduced is not None
    make, arguments = reduced
    found = pack(make(*arguments)).open()
    assert found.device.type == "cpu" and torch.equal(found.to_dense(), torch.eye(3))
