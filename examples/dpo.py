"""DPO: a model learns from pairs of answers, of which one is preferred, and keeps close to a reference.

python examples/dpo.py                 # all in this process, about a minute
python examples/dpo.py --mode threads  # a group for the models, and one for the sampler; or --mode ray

It leaves out: models of several ranks (device_mesh=), an adapter as the policy, so that annotate(..., adapters=False)
is the reference (lora=), checkpoints (Checkpoints).
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import torch
from digits import PROMPTS, arguments, counts_on, model_and_tokenizer, pair, told, tune

import twinkle
from twinkle import DataLoader, DeviceGroup, WeightSync, stream
from twinkle.engines import SamplingParams, TransformersModel, TransformersSampler, evaluate, preferences


def train(mode: Any = "local", steps: int = 40) -> list[dict[str, float]]:
    """The figures of each step; "right" is the share of sampled answers that are, measured at each tenth."""
    config, tokenizer = model_and_tokenizer()
    draw = random.Random(0)
    rows = [pair(index % 10, draw) for index in range(40 * steps)]
    params = SamplingParams(max_new_tokens=2)
    with twinkle.session(mode, groups=[DeviceGroup("models", 1, "CPU"), DeviceGroup("sampler", 1, "CPU")]):
        adamw = partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.0)
        actor = TransformersModel(config, optimizer=adamw, remote_group="models")
        reference = TransformersModel(config, optimizer=None, remote_group="models")
        sampler = TransformersSampler(config, tokenizer=tokenizer, params=params, remote_group="sampler")
        tune(actor, tokenizer, steps=60)
        WeightSync(actor, reference)()
        sync = WeightSync(actor, sampler)
        history: list[dict[str, float]] = []
        loader = DataLoader(rows, batch_size=40, collate_fn=partial(preferences, tokenizer=tokenizer))
        with stream(loader, partial(reference.annotate, column="ref_logprobs")) as batches:
            for batch in batches:
                found = dict(actor.forward_backward(batch, "dpo", beta=1.0))
                actor.step()
                history.append(found)
                if len(history) % 10 == 0:
                    sync()
                    found["right"] = evaluate(sampler, PROMPTS, counts_on, n=8)["pass@1"]
                told(len(history), found)
    return history


if __name__ == "__main__":
    train(**arguments(__doc__, steps=40))
