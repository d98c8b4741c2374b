"""A training step of two data ranks over sequences of lognormal lengths: divided by rows, and by tokens.

    python benchmarks/bench_even_work.py [--rows 32] [--steps 4]

The model is a small Llama with random weights. Seconds are those of the processor in each rank's process, so that other
load on the machine does not count; the slowest rank's share is of the mean of both. Wall seconds stand next to them.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from typing import Any

import torch

import twinkle
from twinkle import DeviceGroup, DeviceMesh, remote_class, remote_function
from twinkle.engines import Rollouts, TransformersModel

MEDIAN, LONGEST = 96, 2048


def model() -> Any:
    """A Llama of 4 layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=4096, **sizes))


def rollouts(rows: int, seed: int) -> Rollouts:
    """Rows of one sequence each, of lognormal lengths (sigma 1)."""
    draw = random.Random(seed)
    lengths = [min(max(int(draw.lognormvariate(0.0, 1.0) * MEDIAN), 2), LONGEST) for _ in range(rows)]
    return Rollouts([torch.randint(1, 512, (length,)) for length in lengths])


@remote_class()
class Timed(TransformersModel):
    """A model that measures its passes."""

    def forward_backward(self, batch: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The passes, in one thread."""
        torch.set_num_threads(1)
        began = time.process_time()
        found = super().forward_backward(batch, *args, **kwargs)
        self.spent = time.process_time() - began
        return found

    @remote_function("slice_dp", collect="first", split=("batch",), collective=True)
    def in_order(self, batch: Any) -> dict[str, float]:
        """The passes over equally many rows for each rank, in their order."""
        return self.forward_backward(batch)

    @remote_function(dispatch="all", collect="none")
    def seconds(self) -> float:
        """Seconds of the processor for the last passes."""
        return self.spent


def measured(rows: int, steps: int, *, balance: bool) -> tuple[float, float, float]:
    """The slowest rank's seconds of a step, its share of the mean, and the wall seconds; the mean of the steps."""
    mesh = DeviceMesh.from_sizes(dp_size=2, device_type="cpu")
    trainer = twinkle.on("trainer", mesh).create(
        Timed,
        model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        max_tokens=2048,
    )
    slowest = share = wall = 0.0
    for step in range(steps + 1):
        batch = rollouts(rows, step)
        began = time.perf_counter()
        twinkle.get(trainer.forward_backward(batch) if balance else trainer.in_order(batch))
        took = time.perf_counter() - began
        twinkle.get(trainer.step())
        spent: Any = twinkle.get(trainer.seconds())
        if step:  # the first one measures the model
            slowest += max(spent) / steps
            share += max(spent) / (sum(spent) / len(spent)) / steps
            wall += took / steps
    twinkle.release(trainer)
    return slowest, share, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    with twinkle.session("ray", groups=[DeviceGroup("trainer", 2, "CPU")], start_timeout=600):
        for balance in (False, True):
            slowest, share, wall = measured(given.rows, given.steps, balance=balance)
            print(
                f"balance={balance}: the slowest rank {slowest:.2f} s of the processor, {share:.2f} of the mean; a step"
                f" {wall:.2f} s (load {os.getloadavg()[0]:.0f})"
            )


if __name__ == "__main__":
    main()
