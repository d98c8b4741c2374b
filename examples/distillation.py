"""On-policy distillation: a student writes, and learns at each token from what a larger teacher says of it.

python examples/distillation.py                 # all in this process, about a minute
python examples/distillation.py --mode threads  # a group for the models, and one for the sampler; or --mode ray

It leaves out: models of several ranks (device_mesh=), samples of an older student (correction=), a teacher whose
tokens are others than the student's, checkpoints (Checkpoints).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from digits import PROMPTS, arguments, counts_on, mean_rewards, model_and_tokenizer, told, tune

import twinkle
from twinkle import DataLoader, DeviceGroup, WeightSync, stream
from twinkle.engines import SamplingParams, TransformersModel, TransformersSampler, rewards


def train(mode: Any = "local", steps: int = 60) -> list[dict[str, float]]:
    """The figures of each step: the divergence from the teacher, and the reward, from which nothing is learnt."""
    large, tokenizer = model_and_tokenizer(96)
    small, _ = model_and_tokenizer(32)
    params = SamplingParams(n=16, max_new_tokens=2)
    adamw = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.0)
    with twinkle.session(mode, groups=[DeviceGroup("models", 1, "CPU"), DeviceGroup("sampler", 1, "CPU")]):
        teacher = TransformersModel(large, optimizer=adamw, remote_group="models")
        student = TransformersModel(small, optimizer=adamw, remote_group="models")
        sampler = TransformersSampler(small, tokenizer=tokenizer, params=params, remote_group="sampler")
        grader = rewards(counts_on, remote_group="sampler")
        tune(teacher, tokenizer, lambda digit: (digit + 1) % 10)
        tune(student, tokenizer, steps=20)
        sync = WeightSync(student, sampler)
        sync()
        history = []
        stages = (sampler.sample, grader.grade, partial(teacher.annotate, column="teacher", top_k=16))
        with stream(DataLoader(PROMPTS * steps, batch_size=len(PROMPTS)), *stages) as batches:
            for batch in batches:
                found = dict(student.forward_backward(batch, "reverse_kl"))
                student.step()
                sync()
                means = twinkle.get(twinkle.map(batch, mean_rewards))
                history.append({"reward": sum(means) / len(means), **found})
                told(len(history), history[-1])
    return history


if __name__ == "__main__":
    train(**arguments(__doc__, steps=60))
