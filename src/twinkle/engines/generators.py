"""The state of a process's generators of random numbers: Python's, numpy's, torch's, and that of its device."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def generator_states(device: torch.device) -> dict[str, Any]:
    """The states, of numbers, texts and tensors alone."""
    kind, key, *rest = np.random.get_state(legacy=True)
    states = {
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.array(key, dtype=np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_generators(states: dict[str, Any], device: torch.device) -> None:
    """Go on from some states; a device of another kind than theirs keeps its own."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, key, *rest = states["numpy"]
    np.random.set_state((kind, key.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if device.type != "cpu" and "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"], device)
