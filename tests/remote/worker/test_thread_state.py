"""What a constructor sets for torch in its thread holds for coroutines too."""

from __future__ import annotations

import pytest
import torch

from twinkle_mesh import DeviceGroup
from twinkle_remote import get, on, remote_class, remote_function, session

_GUARDS: list[object] = []  # the end of one gives the state of its thread to the thread that frees it


@remote_class()
class States:
    def __init__(self, grad: bool, inference: bool, device: str, casts: bool) -> None:
        torch.set_grad_enabled(grad)
        if inference:
            guard = torch.inference_mode()
            guard.__enter__()
            _GUARDS.append(guard)
        torch.set_default_device(device)
        torch.set_autocast_enabled("cpu", casts)
        torch.set_autocast_dtype("cpu", torch.float16 if casts else torch.bfloat16)

    def _state(self) -> list[object]:
        casts = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu") == torch.float16
        return [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.empty(0).device.type, *casts]

    @remote_function(dispatch="all", collect="first")
    def plain(self) -> list[object]:
        return self._state()

    @remote_function(dispatch="all", collect="first")
    async def coroutine(self) -> list[object]:
        return self._state()


@pytest.mark.parametrize(
    ("grad", "inference", "device", "casts"),
    [(True, False, "cpu", False), (False, False, "cpu", True), (False, True, "meta", False)],
)
def test_coroutines_see_what_methods_see(grad: bool, inference: bool, device: str, casts: bool) -> None:
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        states = on("one").create(States, grad, inference, device, casts)
        assert get(states.plain()) == get(states.coroutine()) == [grad, inference, device, casts, casts]
