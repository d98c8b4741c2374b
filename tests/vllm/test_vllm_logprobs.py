from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_engine import ENGINE
from tiny_models import sgd
from torch.testing import assert_close

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


def test_requests_at_work_at_once_have_the_log_probabilities_of_their_own_temperatures(folder: str) -> None:
    """Before top_k, top_p and min_p, as the trainer computes them; greedy rows, whose temperature is 1, among them."""
    with twinkle.session("threads", groups=[DeviceGroup("sampler", 1, "CPU")], seed=0):
        sampler: Any = VLLMSampler(folder, remote_group="sampler", **ENGINE)
        trainer: Any = TransformersModel(folder, optimizer=sgd)
        params = [SamplingParams(n=2, max_new_tokens=24 - 2 * i, **one) for i, one in enumerate(DRAWINGS)]
        calls = [sampler.sample(PROMPTS, one) for one in params]
        for one, call in zip(params, calls, strict=True):
            rollouts = twinkle.get(call)
            assert rollouts.temperatures == [one.temperature or 1.0] * 6
            theirs = trainer.logprobs(rollouts)
            for mask, own, row in zip(rollouts.mask, rollouts.logprobs, theirs, strict=True):
                # at 0.01 float32 logits are divided to thousands, and keep three digits behind the point
                assert_close(own, torch.where(mask.bool(), row, 0), rtol=0, atol=2e-4 if one.temperature else 1e-4)
            assert one.temperature == 0.01 or mismatch(rollouts, theirs)["worst"] < 1.0005


class Context:
    """Which slot each row of the second runner belongs to."""

    def __init__(self, slots: list[int]) -> None:
        self.expanded_idx_mapping = torch.tensor(slots)


class Requests:
    """What the second runner tells of its slots."""

    device = torch.device("cpu")
    max_num_reqs = 4


def test_the_processor_is_one_of_the_second_runner_too() -> None:
    """That runner needs a GPU: its calls are made here as it makes them, and what follows is what it computes."""
    from vllm import SamplingParams as Drawing
    from vllm.v1.sample.logits_processor import LogitsProcessor
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotProcessor

    from twinkle_engines.samplers.vllm_logprobs import NormalizedLogits

    assert issubclass(NormalizedLogits, LogitsProcessor) and issubclass(NormalizedLogits, SlotProcessor)
    processor = NormalizedLogits(None, Requests())
    temperatures = {2: 0.5, 0: 0.0, 3: 1.5}
    for slot, temperature in temperatures.items():
        assert processor.add_request(slot, Drawing(temperature=temperature))
    processor.apply_staged_writes()
    slots = [3, 0, 2, 2]
    logits = torch.randn(4, 50) * 4
    found = processor.apply(logits.clone(), Context(slots))
    for row, slot in enumerate(slots):
        divisor = temperatures[slot] or 1.0
        assert_close(found[row] / divisor, (logits[row] / divisor).log_softmax(-1))
        assert int(found[row].argmax()) == int(logits[row].argmax())
    processor.add_request(2, Drawing(temperature=1.0))  # another request in the slot
    processor.apply_staged_writes()
    assert_close(processor.apply(logits, Context(slots))[2], logits[2].log_softmax(-1))


def test_requests_of_the_first_runner_move() -> None:
    from vllm import SamplingParams as Drawing
    from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

    from twinkle_engines.samplers.vllm_logprobs import NormalizedLogits

    processor = NormalizedLogits(None, torch.device("cpu"), False)
    added: list[Any] = [(i, Drawing(temperature=one), None, []) for i, one in enumerate([0.5, 1.0, 2.0])]
    processor.update_state(BatchUpdate(3, removed=[], added=added, moved=[]))
    check(processor, [0.5, 1.0, 2.0])
    processor.update_state(None)
    check(processor, [0.5, 1.0, 2.0])
    processor.update_state(BatchUpdate(2, removed=[0], added=[], moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)]))
    check(processor, [2.0, 1.0])
    processor.update_state(BatchUpdate(2, removed=[], added=[], moved=[(0, 1, MoveDirectionality.SWAP)]))
    check(processor, [1.0, 2.0])


def check(processor: Any, temperatures: list[float]) -> None:
    logits = torch.randn(len(temperatures), 20)
    divisors = torch.tensor(temperatures)[:, None]
    assert_close(processor.apply(logits.clone()) / divisors, (logits / divisors).log_softmax(-1))


@pytest.mark.parametrize("temperature", [0.009, 1e-4, 1e-6])
def test_a_temperature_that_vllm_raises_is_refused(folder: str, temperature: float) -> None:
    from twinkle_engines.samplers.vllm_model import VLLMModel

    with pytest.raises(ValueError, match=r"at least 0\.01, or 0"):
        VLLMModel(folder, None, None, ENGINE).drawing(SamplingParams(temperature=temperature), 0)


def test_where_vllm_guesses_tokens_ahead_truncated_sampling_is_refused(folder: str) -> None:
    from twinkle_engines.samplers.vllm_model import VLLMModel

    guess = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    model = VLLMModel(folder, None, None, {**ENGINE, "speculative_config": guess})
    assert "logits_processors" not in model.engine_arguments
    assert model.drawing(SamplingParams(temperature=0.7), 0).temperature == 0.7
    with pytest.raises(ValueError, match="speculative_config"):
        model.drawing(SamplingParams(top_k=3), 0)


def test_processors_of_the_user_come_before_the_samplers(folder: str) -> None:
    from twinkle_engines.samplers.vllm_model import VLLMModel

    model = VLLMModel(folder, None, None, {**ENGINE, "logits_processors": ["their:Processor"]})
    first, last = model.engine_arguments["logits_processors"]
    assert first == "their:Processor" and last.endswith(":NormalizedLogits")
