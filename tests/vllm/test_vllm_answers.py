from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_engine import ENGINE, save_tiny
from tiny_models import sgd
from tiny_tokenizer import tiny_tokenizer
from transformers import GenerationConfig

from twinkle import WeightSync
from twinkle.engines import Rollouts, SamplingParams, TransformersModel, TransformersSampler, VLLMSampler

HOT = SamplingParams(n=4, max_new_tokens=12, temperature=2.0, seed=3)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose generation config has ends that its tokenizer does not tell."""
    folder = tmp_path_factory.mktemp("ends")
    save_tiny(folder)
    GenerationConfig(eos_token_id=[5, 77], do_sample=True, top_k=1, temperature=0.1).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def sampler(session: None, ends: str) -> Any:
    return VLLMSampler(ends, **ENGINE)


def ids_of(rollouts: Rollouts) -> list[list[int]]:
    return [row.tolist() for row in rollouts.ids]


def test_every_end_ends_an_answer_and_the_folders_ways_to_draw_are_not_taken(sampler: Any, ends: str) -> None:
    rollouts = sampler.sample([[3, 5, 7]], SamplingParams(n=64, max_new_tokens=200, temperature=2.0, seed=0))
    assert len({tuple(row) for row in ids_of(rollouts)}) > 60
    last = {row[-1] for row, why in zip(ids_of(rollouts), rollouts.finish, strict=True) if why == "stop"}
    assert last == {0, 5, 77}
    for row, mask in zip(rollouts.ids, rollouts.mask, strict=True):
        written = row[mask.bool()].tolist()
        assert not {0, 5, 77} & {*written[:-1]}
    theirs: Any = TransformersSampler(ends)
    greedy = SamplingParams(temperature=0, max_new_tokens=60)
    one, two = sampler.sample([[3], [9, 9]], greedy), theirs.sample([[3], [9, 9]], greedy)
    assert (ids_of(one), one.finish, one.completions) == (ids_of(two), two.finish, two.completions)


@pytest.mark.parametrize(
    "prompts",
    [
        [np.array([3, 5, 7]), np.array([11], dtype=np.uint16)],
        [torch.tensor([3, 5, 7]), torch.tensor([11], dtype=torch.int32)],
        [(np.int64(3), np.int32(5), 7), [np.uint8(11)]],
        [{"prompt": np.array([3, 5, 7]), "answer": "a"}, {"prompt": [11], "answer": "b"}],
        np.array([[3, 5, 7], [3, 5, 7]]),
    ],
)
def test_ids_may_be_numbers_of_other_libraries(sampler: Any, prompts: Any) -> None:
    plain = sampler.sample([[3, 5, 7], [11]], HOT)
    found = sampler.sample(prompts, HOT)
    assert ids_of(found)[:4] == ids_of(plain)[:4] and found.counts == [4, 4]
    assert isinstance(prompts, np.ndarray) or ids_of(found) == ids_of(plain)


def test_special_tokens_are_left_out_of_texts_unless_they_are_wanted(sampler: Any) -> None:
    """The end token is never there; a special one in the middle is, where it is wanted, and a stop may name it."""
    tokenizer = tiny_tokenizer()
    texts = {}
    for skip in (True, False):
        params = SamplingParams(n=64, max_new_tokens=30, temperature=2.0, seed=5, skip_special_tokens=skip)
        rollouts = sampler.sample(["A class"], params)
        texts[skip] = rollouts.completions
        for text, row, mask, why in zip(
            rollouts.completions, rollouts.ids, rollouts.mask, rollouts.finish, strict=True
        ):
            written = row[mask.bool()].tolist()
            assert text == tokenizer.decode(written[:-1] if why == "stop" else written, skip_special_tokens=skip)
    assert all("<end>" not in text for text in texts[True] + texts[False])


def test_a_run_without_a_seed_draws_anew_and_a_resumed_one_goes_on(ends: str, sampler: Any) -> None:
    """By session, component, call and version of the weights, as answers of the same prompt at the same temperature."""
    params = SamplingParams(n=2, max_new_tokens=16, temperature=2.0)
    trainer: Any = TransformersModel(ends, optimizer=sgd)
    drawn = [ids_of(sampler.sample([[3, 5]], params)) for _ in range(2)]
    sync = WeightSync(trainer, sampler)
    for _ in range(2):  # the weights are the same: draws are others because the version is
        sync()
        drawn.append(ids_of(sampler.sample([[3, 5]], params)))
    assert len({str(one) for one in drawn}) == len(drawn)


def test_an_answer_that_the_engine_has_given_up_is_an_error() -> None:
    from vllm.outputs import CompletionOutput

    from twinkle_engines.samplers.vllm_engine import answer_of

    given_up = CompletionOutput(
        index=0, text="", token_ids=[5], cumulative_logprob=None, logprobs=None, finish_reason="abort"
    )
    with pytest.raises(RuntimeError, match="abort"):
        answer_of([3], SimpleNamespace(outputs=[given_up]))
