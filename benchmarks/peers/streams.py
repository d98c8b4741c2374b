"""A stream with default options, and the synchronous loop on the same workers: seconds of the same rows.

Two samplers in threads, batches of 16 prompts, 32 rows ahead. An engine that batches continuously is one that computes:
each of its steps multiplies all its rows by the same weights.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rows import Row, main, seconds

import twinkle_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCHES = 6
PROMPTS = 16


@contextmanager
def sampler(ahead: int, ends: bool) -> Iterator[Callable[[], float]]:
    """TransformersSampler, whose answers have one length, or very different ones."""
    import torch
    from transformers import Qwen3Config

    import twinkle
    from twinkle import DeviceGroup, DeviceMesh, WeightSync
    from twinkle.engines import SamplingParams, TransformersModel, TransformersSampler

    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, eos_token_id=list(range(2)) if ends else None,
    )  # fmt: skip
    groups = [DeviceGroup("trainer", 1, "CPU"), DeviceGroup("sampler", 2, "CPU")]
    with twinkle.session("threads", groups=groups):
        trainer: Any = TransformersModel(config, optimizer=partial(torch.optim.SGD, lr=0.0), remote_group="trainer")
        engine: Any = TransformersSampler(
            config,
            params=SamplingParams(n=2, max_new_tokens=96 if ends else 32),
            device_mesh=DeviceMesh.from_sizes(dp_size=2),
            remote_group="sampler",
        )
        sync = WeightSync(trainer, engine)
        sync()
        source = [[[2 + row, 5, 3] for row in range(PROMPTS)] for _ in range(BATCHES)]

        def loop() -> None:
            with twinkle.stream(source, engine.sample, ahead=ahead, max_lag=2) as batches:
                for batch in batches:
                    trainer.forward_backward(twinkle.get(batch))
                    trainer.step()
                    sync()

        yield lambda: seconds(loop)


class ContinuousEngine:
    """Writes rows of given lengths; all that are there take each step together."""

    def __init__(self) -> None:
        import numpy as np

        self._weights = np.eye(1024, dtype=np.float32)
        self._left: dict[asyncio.Future[None], int] = {}
        self._stepping: asyncio.Task[None] | None = None

    async def write(self, tokens: int) -> None:
        """Wait until a row has so many tokens."""
        done = asyncio.get_running_loop().create_future()
        self._left[done] = tokens
        if self._stepping is None:
            self._stepping = asyncio.create_task(self._steps())
        await done

    def _step(self, rows: int) -> None:
        import numpy as np

        state = np.ones((rows, len(self._weights)), dtype=np.float32)
        for _ in range(8):
            state = state @ self._weights

    async def _steps(self) -> None:
        while self._left:
            await asyncio.to_thread(self._step, len(self._left))
            self._left = {row: left - 1 for row, left in self._left.items()}
            for row in [row for row, left in self._left.items() if not left]:
                del self._left[row]
                row.set_result(None)
        self._stepping = None


@twinkle_remote.remote_class()
class Continuous:
    """A component over such an engine."""

    def __init__(self) -> None:
        self._engine = ContinuousEngine()

    @twinkle_remote.remote_function(dispatch="slice_dp", collect="flatten")
    async def sample(self, rows: list[int]) -> list[int]:
        """The rows, after so many tokens each."""
        await asyncio.gather(*map(self._engine.write, rows))
        return rows


@contextmanager
def continuous(ahead: int) -> Iterator[Callable[[], float]]:
    """An engine with lognormal lengths, sigma 1."""
    import random

    import twinkle
    from twinkle import DeviceGroup, DeviceMesh

    draw = random.Random(0)
    source = [[1 + int(min(20 * draw.lognormvariate(0, 1), 400)) for _ in range(PROMPTS)] for _ in range(3 * BATCHES)]
    with twinkle.session("threads", groups=[DeviceGroup("engine", 2, "CPU")]):
        engine: Any = twinkle.on("engine", DeviceMesh.from_sizes(dp_size=2)).create(Continuous)

        def loop() -> None:
            with twinkle.stream(source, engine.sample, ahead=ahead, rows=PROMPTS, order="arrival") as batches:
                for batch in batches:
                    twinkle.get(batch)

        yield lambda: seconds(loop)


@contextmanager
def vllm(ahead: int) -> Iterator[Callable[[], float]]:
    """The engine of vLLM for CPUs, a tiny model with random weights, whose answers end by chance."""
    import os
    from tempfile import TemporaryDirectory

    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    import twinkle
    from twinkle import DeviceGroup
    from twinkle.engines import SamplingParams, VLLMSampler

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=300, hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, eos_token_id=list(range(6)),
    )  # fmt: skip
    source = [[[6 + row, 5 + batch] for row in range(PROMPTS)] for batch in range(3 * BATCHES)]
    with TemporaryDirectory() as folder, twinkle.session("threads", groups=[DeviceGroup("engine", 1, "CPU")], seed=0):
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        engine: Any = VLLMSampler(
            folder,
            params=SamplingParams(max_new_tokens=400),
            remote_group="engine",
            dtype="float32",
            enforce_eager=True,
            max_model_len=512,
        )

        def loop() -> None:
            with twinkle.stream(source, engine.sample, ahead=ahead, order="arrival") as batches:
                for batch in batches:
                    twinkle.get(batch)

        yield lambda: seconds(loop)


AHEAD = 32
LOOP = "the synchronous loop"
SIDES = {
    "one length": partial(sampler, AHEAD, False),
    "one length, synchronous": partial(sampler, 0, False),
    "lengths vary": partial(sampler, AHEAD, True),
    "lengths vary, synchronous": partial(sampler, 0, True),
    "engine": partial(continuous, AHEAD),
    "engine, synchronous": partial(continuous, 0),
    "vllm": partial(vllm, AHEAD),
    "vllm, synchronous": partial(vllm, 0),
}
ROWS = [
    Row(
        f"a stream over TransformersSampler, {lengths}", "torch", lengths, f"{lengths}, synchronous", "s",
        at_most=1.05, by_hand=LOOP,
    )
    for lengths in ("one length", "lengths vary")
]  # fmt: skip
ROWS += [
    Row(
        "a stream over an engine that batches continuously", "torch", "engine", "engine, synchronous", "s",
        at_most=0.67, by_hand=LOOP,
    ),
    Row(
        "a stream over vLLM for CPUs", "vllm", "vllm", "vllm, synchronous", "s",
        at_most=0.67, by_hand=LOOP, environment="vllm",
    ),
]  # fmt: skip

if __name__ == "__main__":
    main(SIDES, ROWS)
