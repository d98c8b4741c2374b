"""Weights that an engine reads are mapped and pinned once; a substitute of CUDA's runtime notes what it is asked."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from twinkle_engines.samplers.shared_weights import SharedWeights


class Runtime:
    """What CUDA's runtime is asked to pin, and to let go."""

    def __init__(self) -> None:
        self.pinned, self.freed = list[tuple[int, int]](), list[int]()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        self.pinned.append((address, size))
        return 0

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802 - as above
        self.freed.append(address)


class Model:
    """A model that reads two weights."""

    def __init__(self) -> None:
        self.read = list[int]()

    def named_parameters(self) -> list[tuple[str, Any]]:
        return [("a", None), ("b", None)]

    def load_weights(self, weights: Any) -> set[str]:
        found = dict(weights)
        self.read.append(found["a"].data_ptr())
        assert float(found["a"].sum()) == 6.0
        return set(found)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_weights_for_a_gpu_are_pinned_once_and_as_long_as_the_engine_lives(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twinkle_engines.samplers import vllm_weights
    from twinkle_engines.samplers.vllm_weights import SharedMemoryEngine, SharedUpdate

    runtime = Runtime()
    monkeypatch.setattr(vllm_weights, "current_platform", SimpleNamespace(is_cuda=lambda: device == "cuda"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    engine: Any = SharedMemoryEngine.__new__(SharedMemoryEngine)
    engine.model, engine.model_config = Model(), SimpleNamespace(quantization=None)
    memory = SharedWeights({"a": torch.empty(2, 3, device="meta"), "b": torch.empty(5, device="meta")})
    memory.tensors["a"].fill_(1.0)
    for _ in range(3):
        engine.receive_weights(SharedUpdate(**memory.description))
    assert len(set(engine.model.read)) == 1
    size = memory.description["size"]
    assert runtime.pinned == ([(engine.model.read[0], size)] if device == "cuda" else [])
    del engine
    gc.collect()
    assert runtime.freed == [address for address, _ in runtime.pinned]


def test_other_memory_is_mapped_anew() -> None:
    from twinkle_engines.samplers.vllm_weights import SharedMemoryEngine, SharedUpdate

    engine: Any = SharedMemoryEngine.__new__(SharedMemoryEngine)
    engine.model, engine.model_config = Model(), SimpleNamespace(quantization=None)
    for rows in (2, 3):
        memory = SharedWeights({"a": torch.empty(rows, 6 // rows, device="meta"), "b": torch.empty(5, device="meta")})
        memory.tensors["a"].fill_(1.0)
        engine.receive_weights(SharedUpdate(**memory.description))
    assert len(engine.model.read) == 2
