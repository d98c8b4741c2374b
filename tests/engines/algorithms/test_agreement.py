"""The mismatch of engines against a loop over single tokens."""

from __future__ import annotations

import math

import pytest
import torch

from twinkle.engines import Rollouts, mismatch


def written() -> Rollouts:
    torch.manual_seed(0)
    lengths = [5, 1, 3]
    logprobs = [-torch.rand(n) for n in lengths]
    masks = [[0, 0, 1, 0, 1], [1], [1, 1, 1]]
    return Rollouts([range(n) for n in lengths], masks, logprobs=logprobs)


def test_mean_and_worst_are_those_of_a_loop() -> None:
    rollouts = written()
    assert rollouts.logprobs and rollouts.mask
    trained = [logprobs + 0.3 * torch.randn(len(logprobs)) for logprobs in rollouts.logprobs]
    ratios = []
    for p, q, mask in zip(trained, rollouts.logprobs, rollouts.mask, strict=True):
        for t in range(1, len(p)):
            if mask[t]:
                a, b = math.exp(p[t]), math.exp(q[t])
                ratios.append(max(a / b, b / a))
    found = mismatch(rollouts.replace(proximal=trained))
    assert len(ratios) == 4
    assert found == pytest.approx({"mean": sum(ratios) / 4, "worst": max(ratios)}, rel=1e-5)
    assert found["worst"] > found["mean"] > 1.05


def test_what_does_not_count_is_left_out() -> None:
    rollouts = written()
    assert rollouts.logprobs
    off = [logprobs.clone() for logprobs in rollouts.logprobs]
    off[0][[0, 1, 3]] += 5.0
    off[1] += 5.0
    off[2][0] += 5.0
    rollouts = rollouts.with_column("trained", off)
    assert mismatch(rollouts, "trained") == mismatch(rollouts[1:2], "trained") == {"mean": 1.0, "worst": 1.0}
    assert mismatch(rollouts.replace(mask=None), "trained")["worst"] == pytest.approx(math.exp(5.0), rel=1e-5)
