"""A reward model: a number for each answer, learnt from pairs, of which one answer is preferred.

python examples/reward_model.py                 # all in this process, half a minute
python examples/reward_model.py --mode threads  # the model in a group of its own; or --mode ray

It leaves out: models of several ranks (device_mesh=), the folder of a language model as the body (a path in place of
the config), PPO with this model as the reward (examples/ppo.py; `scores` below is the stage).
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from digits import arguments, model_and_tokenizer, pair, told

import twinkle
from twinkle import DataLoader, DeviceGroup
from twinkle.engines import TransformersModel, preferences

if TYPE_CHECKING:
    from twinkle.engines import Rollouts


def scores(model: Any, answers: Rollouts) -> list[float]:
    """The model's number for each sequence; it stands at the last token, and 0 before that."""
    rated = twinkle.get(model.annotate(answers, "scores"))
    return [float(one.sum()) for one in rated.column("scores")]


def train(mode: Any = "local", steps: int = 60) -> list[dict[str, float]]:
    """The figures of each step; at each tenth with the loss and the accuracy of pairs that were not trained."""
    config, tokenizer = model_and_tokenizer()
    draw = random.Random(0)
    rows = [pair(index % 10, draw) for index in range(40 * steps)]
    held = preferences([pair(index % 10, draw) for index in range(80)], tokenizer)
    with twinkle.session(mode, groups=[DeviceGroup("models", 1, "CPU")]):
        adamw = partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.0)
        model = TransformersModel(config, optimizer=adamw, head="score", remote_group="models")
        loader = DataLoader(rows, batch_size=40, collate_fn=partial(preferences, tokenizer=tokenizer))
        history: list[dict[str, float]] = []
        for batch in loader:
            history.append(dict(model.forward_backward(batch, "bradley_terry")))
            model.step()
            if len(history) % 10 == 0:
                found = model.evaluate_loss(held, "bradley_terry")
                history[-1] |= {"held_loss": found["loss"], "held_accuracy": found["accuracy"]}
            told(len(history), history[-1])
        texts = [{"prompt": "count on: 3", "chosen": "4", "rejected": str(digit)} for digit in (2, 3, 5, 8)]
        best, *others = [scores(model, preferences([one], tokenizer)) for one in texts]
        print(f"count on: 3 -> 4 has {best[0]:.2f}; 2, 3, 5, 8 have", [round(one[1], 2) for one in (best, *others)])
    return history


if __name__ == "__main__":
    train(**arguments(__doc__, steps=60))
