"""State that torch keeps for each thread: a constructor sets it in one, and coroutines run in another one."""

from __future__ import annotations

import sys
import threading
from typing import Any, NamedTuple

_kept = threading.local()
_CASTING = ("cpu", "cuda")


class ThreadState(NamedTuple):
    """The state of one thread.

    Attributes:
        grad: Whether gradients are recorded.
        inference: Whether inference mode is on.
        device: The default device, as text.
        autocast: Whether operations are cast, and to which type, on each of `_CASTING`.
    """

    grad: bool
    inference: bool
    device: str
    autocast: tuple[tuple[bool, Any], ...]


def read() -> ThreadState | None:
    """The state of this thread; None if torch is not loaded."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):  # another thread may be loading it
        return None
    casting = tuple([(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _CASTING])
    return ThreadState(
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), str(torch.get_default_device()), casting
    )


def take(state: ThreadState | None) -> None:
    """Give this thread a state."""
    here = read()
    if state is None or here is None or here == state:
        return
    torch: Any = sys.modules["torch"]
    if here.inference != state.inference:
        _kept.guard = torch.inference_mode(state.inference)  # its end would end the mode
        _kept.guard.__enter__()
    if torch.is_grad_enabled() != state.grad:
        torch.set_grad_enabled(state.grad)
    if here.device != state.device:
        torch.set_default_device(state.device)
    for kind, ours, theirs in zip(_CASTING, here.autocast, state.autocast, strict=True):
        if ours != theirs:
            torch.set_autocast_enabled(kind, theirs[0])
            torch.set_autocast_dtype(kind, theirs[1])
