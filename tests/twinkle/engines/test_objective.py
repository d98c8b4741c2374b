from __future__ import annotations

import pytest
import torch
from tiny_models import Build, plain_logprobs, sgd

from twinkle.engines import Rollouts, TransformersModel

IDS = [[3, 5, 7, 9], [3, 5, 8], [2, 4, 6, 1, 1], [2, 4, 9, 9]]


def rollouts() -> Rollouts:
    generator = torch.Generator().manual_seed(0)
    old = [-torch.rand(len(ids), generator=generator) - 4 for ids in IDS]
    mask = [[0, 0] + [1] * (len(ids) - 2) for ids in IDS]
    return Rollouts(IDS, mask, old, ref_logprobs=old, advantages=[1.0, -1.0, 0.5, -0.5], counts=[2, 2])


def test_grpo_over_micro_batches_is_its_formula() -> None:
    model, batch = Build("llama")(), rollouts()
    assert batch.logprobs is not None and batch.advantages is not None
    total, count = 0.0, 0
    for ids, old, advantage in zip(batch.ids, batch.logprobs, batch.advantages, strict=True):
        ratio = (plain_logprobs(model, ids).detach() - old).exp()[2:]
        gains = torch.minimum(ratio * advantage[2:], ratio.clamp(0.9, 1.3) * advantage[2:])
        total, count = total - float(gains.sum()), count + len(gains)
    trained = TransformersModel(Build("llama"), optimizer=sgd, micro_batch_size=1)
    loss = trained.forward_backward(batch, "grpo", "token", low=0.1, high=0.3)["loss"]
    assert loss == pytest.approx(total / count, abs=2e-6)  # gains of up to 1 cancel out
    assert trained.step()["grad_norm"] > 0


def test_dpo_counts_pairs() -> None:
    model, batch = Build("llama")(), rollouts()
    assert batch.ref_logprobs is not None
    ratios = [
        float((plain_logprobs(model, ids).detach() - ref)[2:].sum())
        for ids, ref in zip(batch.ids, batch.ref_logprobs, strict=True)
    ]
    expected = [float(torch.nn.functional.softplus(torch.tensor(-0.5 * (ratios[i] - ratios[i + 1])))) for i in (0, 2)]
    trained = TransformersModel(Build("llama"), optimizer=sgd, micro_batch_size=1)
    assert trained.forward_backward(batch, "dpo", beta=0.5)["loss"] == pytest.approx(sum(expected) / 2, rel=1e-4)
