"""An agent: a model acts in an environment for several turns, and is trained by GRPO on the tokens that it wrote.

python examples/agent.py                 # all in this process, about a minute
python examples/agent.py --mode threads  # a group for the model, one for the sampler and one for environments; or ray

Episodes are token-exact: what the model wrote is never encoded again, each of its tokens is trained once, and what an
environment's failure leaves out is named. This file leaves out: tools (`Environment.tools`), models of several ranks
(device_mesh=), checkpoints (Checkpoints).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from digits import arguments, mean_rewards, told

import twinkle
from twinkle import DataLoader, DeviceGroup, WeightSync, stream
from twinkle.engines import (
    Action,
    Advantages,
    Environment,
    Episodes,
    SamplingParams,
    TransformersModel,
    TransformersSampler,
    tiny_model,
)

ROWS = [{"prompt": text} for text in ("Say a vowel:", "And so on:", "What comes next?", "Once upon a time")]


class Vowels(Environment):
    """Two turns; each is worth the vowels of its answer."""

    def __init__(self) -> None:
        self.turn = 0

    async def step(self, action: Action) -> tuple[str | None, float, bool | Literal["cut"]]:
        """Count vowels, and ask once more."""
        self.turn += 1
        reward = sum(letter in "aeiou" for letter in action.text) / 12
        return ("Again:", reward, False) if self.turn == 1 else (None, reward, True)


def train(mode: Any = "local", steps: int = 15) -> list[dict[str, float]]:
    """The figures of each step."""
    config, tokenizer = tiny_model(vocabulary=300)
    groups = [DeviceGroup(name, 1, "CPU") for name in ("model", "sampler", "environments")]
    params = SamplingParams(max_new_tokens=6)
    with twinkle.session(mode, groups=groups, seed=0):
        model = TransformersModel(config, optimizer=partial(torch.optim.Adam, lr=0.01), remote_group="model")
        sampler = TransformersSampler(config, tokenizer=tokenizer, params=params, remote_group="sampler")
        episodes = Episodes(sampler, Vowels, max_turns=2, max_tokens=200, n=16, remote_group="environments")
        advantages = Advantages("grpo", remote_group="environments")
        sync = WeightSync(model, sampler)
        sync()
        history = []
        with stream(DataLoader(ROWS * steps, batch_size=4), episodes.run, advantages.add) as batches:
            for batch in batches:
                found = dict(model.forward_backward(batch, "grpo"))
                model.step()
                sync()
                means = twinkle.get(twinkle.map(batch, mean_rewards))  # computed where the rows are
                history.append({"reward": sum(means) / len(means), **found})
                told(len(history), history[-1])
    return history


if __name__ == "__main__":
    train(**arguments(__doc__, steps=15))
