from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_engine import ENGINE
from tiny_models import logprobs_of, sgd
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

import twinkle
from twinkle import DeviceGroup
from twinkle.engines import SamplingParams, TransformersModel, VLLMSampler, mismatch

PROMPTS = [[3, 5, 7], [11], [2, 4, 6, 8, 10, 12]]
DRAWINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0.01},
    {"temperature": 0.3, "top_k": 5},
    {"temperature": 2.0, "top_p": 0.5},
    {"temperature": 0.7, "min_p": 0.2},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.9, "top_k": 1},
]


@pytest.fixture(scope="module")
def sampler(session: None, folder: str) -> Any:
    return VLLMSampler(folder, **ENGINE)


def test_requests_at_work_at_once_have_the_log_probabilities_of_their_own_distributions(folder: str) -> None:
    """Those that were drawn from; greedy rows, whose temperature is 1, among them. The trainer's agree without cuts."""
    with twinkle.session("threads", groups=[DeviceGroup("sampler", 1, "CPU")], seed=0):
        sampler: Any = VLLMSampler(folder, remote_group="sampler", **ENGINE)
        trainer: Any = TransformersModel(folder, optimizer=sgd)
        plain: Any = AutoModelForCausalLM.from_pretrained(folder)
        params = [SamplingParams(n=2, max_new_tokens=24 - 2 * i, **one) for i, one in enumerate(DRAWINGS)]
        calls = [sampler.sample(PROMPTS, one) for one in params]
        for one, given, call in zip(params, DRAWINGS, calls, strict=True):
            rollouts = twinkle.get(call)
            assert rollouts.temperatures == [one.temperature or 1.0] * 6
            for ids, mask, own in zip(rollouts.ids, rollouts.mask, rollouts.logprobs, strict=True):
                with torch.no_grad():
                    logits = plain(input_ids=ids[None]).logits[0]
                for place in mask.nonzero().flatten().tolist():
                    right = kept(logits[place - 1], given)[ids[place]]
                    # at 0.01 float32 logits are divided to thousands, and keep three digits behind the point
                    assert_close(own[place], right, rtol=0, atol=2e-4)
            if not (one.top_k or one.min_p or one.top_p < 1) and one.temperature != 0.01:
                theirs = logprobs_of(trainer, rollouts)
                assert mismatch(rollouts.replace(proximal=theirs))["worst"] < 1.0005


def kept(logits: torch.Tensor, one: dict[str, Any]) -> torch.Tensor:
    """Log-probabilities at a temperature of the tokens that are left by min_p, top_k, then top_p; -inf elsewhere."""
    logits = logits / (one.get("temperature") or 1.0)
    if one.get("min_p"):
        probabilities = logits.softmax(0)
        logits = torch.where(probabilities >= one["min_p"] * probabilities.max(), logits, -torch.inf)
    if one.get("top_k"):
        logits = torch.where(logits >= logits.sort(descending=True).values[one["top_k"] - 1], logits, -torch.inf)
    if one.get("top_p"):
        probabilities = logits.softmax(0)
        before = torch.stack([probabilities[probabilities > own].sum() for own in probabilities])
        logits = torch.where(before < one["top_p"], logits, -torch.inf)
    return logits.log_softmax(0)
