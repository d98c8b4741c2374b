"""PPO: a policy with a critic and a reference learns from a reward alone.

python examples/ppo.py                 # all in this process, about a minute
python examples/ppo.py --mode threads  # a group for the models, and one for the sampler; or --mode ray

It leaves out: models of several ranks (device_mesh=), several steps on a batch (twinkle.minibatches), checkpoints
(Checkpoints). Rollouts stay on the workers; rewards of rows alone come to the loop.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from digits import PROMPTS, arguments, counts_on, mean_rewards, model_and_tokenizer, told, tune

import twinkle
from twinkle import DataLoader, DeviceGroup, WeightSync, stream
from twinkle.engines import Advantages, SamplingParams, TransformersModel, TransformersSampler, rewards


def train(mode: Any = "local", steps: int = 40) -> list[dict[str, float]]:
    """The figures of each step."""
    config, tokenizer = model_and_tokenizer()
    adamw = partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.0)
    params = SamplingParams(n=32, max_new_tokens=2)
    with twinkle.session(mode, groups=[DeviceGroup("models", 1, "CPU"), DeviceGroup("sampler", 1, "CPU")]):
        actor = TransformersModel(config, optimizer=adamw, remote_group="models")
        critic = TransformersModel(config, optimizer=adamw, head="value", remote_group="models")
        reference = TransformersModel(config, optimizer=None, remote_group="models")
        sampler = TransformersSampler(config, tokenizer=tokenizer, params=params, remote_group="sampler")
        grader = rewards(counts_on, remote_group="sampler")
        adder = Advantages("gae", scale=False, kl=0.003, remote_group="models")
        tune(actor, tokenizer)
        WeightSync(actor, reference)()
        sync = WeightSync(actor, sampler)
        sync()
        stages = (
            sampler.sample,
            grader.grade,
            partial(reference.annotate, column="ref_logprobs"),
            partial(critic.annotate, column="values"),
            adder.add,
        )
        history = []
        with stream(DataLoader(PROMPTS * steps, batch_size=len(PROMPTS)), *stages) as batches:
            for batch in batches:
                found = dict(actor.forward_backward(batch, "ppo", whiten=True))
                errors = critic.forward_backward(batch, "value", clip=0.2)
                actor.step()
                critic.step()
                sync()
                means = twinkle.get(twinkle.map(batch, mean_rewards))
                history.append({"reward": sum(means) / len(means), **found, "critic": errors["loss"]})
                told(len(history), history[-1])
    return history


if __name__ == "__main__":
    train(**arguments(__doc__, steps=40))
