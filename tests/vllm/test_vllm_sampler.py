from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_engine import ENGINE
from tiny_tokenizer import tiny_tokenizer
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from twinkle import WeightSync, WeightSyncError
from twinkle.engines import Rollouts, SamplingParams, VLLMSampler, mismatch

IDS = [[3, 5, 7], [11], [2, 4, 6, 8, 10, 12], [60, 1]]


@pytest.fixture(scope="module")
def sampler(session: None, folder: str) -> Any:
    return VLLMSampler(folder, tokenizer=tiny_tokenizer(), **ENGINE)


def ids_of(rollouts: Rollouts) -> list[list[int]]:
    return [row.tolist() for row in rollouts.ids]


def test_answers_come_in_the_order_of_the_prompts(sampler: Any) -> None:
    prompts = [IDS[i % 4] for i in range(23)]
    rollouts = sampler.sample(prompts, SamplingParams(n=3, max_new_tokens=5, seed=1))
    assert (len(rollouts), rollouts.counts, rollouts.prompts) == (23, [3] * 23, prompts)
    assert [row[: len(prompts[i // 3])] for i, row in enumerate(ids_of(rollouts))] == [
        ids for ids in prompts for _ in range(3)
    ]
    assert rollouts.mask is not None and rollouts.versions is not None
    assert [int(mask.sum()) for mask in rollouts.mask] == [
        len(ids) - len(prompts[i // 3]) for i, ids in enumerate(rollouts.ids)
    ]
    assert {int(version) for row in rollouts.versions for version in row} == {0}
    assert len(sampler.sample([], SamplingParams())) == 0


def test_temperature_0_writes_what_hugging_face_writes(sampler: Any, folder: str) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    rollouts = sampler.sample(IDS, SamplingParams(temperature=0, max_new_tokens=24))
    for prompt, written in zip(IDS, ids_of(rollouts), strict=True):
        expected = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)[0]
        assert written == expected.tolist()


def test_logprobs_agree_with_the_trainers(sampler: Any, trainer: Any) -> None:
    rollouts = sampler.sample(IDS, SamplingParams(temperature=0.7, n=3, max_new_tokens=9, seed=4))
    theirs = trainer.annotate(rollouts, "proximal")
    for mask, own, row in zip(rollouts.mask, rollouts.logprobs, theirs.proximal, strict=True):
        assert_close(own, torch.where(mask.bool(), row, 0), rtol=0, atol=1e-4)
    ratio = mismatch(theirs)
    print(ratio)
    assert 1 <= ratio["mean"] <= ratio["worst"] < 1.0001


def test_an_answer_depends_on_its_seed_and_prompt_alone(sampler: Any) -> None:
    params = SamplingParams(n=2, max_new_tokens=12, seed=1)
    together = ids_of(sampler.sample(IDS, params))
    alone = [row for ids in reversed(IDS) for row in ids_of(sampler.sample([ids], params))]
    assert [alone[i] for i in (6, 7, 4, 5, 2, 3, 0, 1)] == together
    assert ids_of(sampler.sample(IDS, SamplingParams(n=2, max_new_tokens=12, seed=2))) != together
    free = SamplingParams(max_new_tokens=12)
    assert ids_of(sampler.sample(IDS, free)) != ids_of(sampler.sample(IDS, free))


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, lambda p: p > 0),
        ({"temperature": 0.5}, lambda p: p > 0),
        ({"top_k": 3}, lambda p: p >= p.sort(descending=True).values[2]),
        ({"min_p": 0.3}, lambda p: p >= 0.3 * p.max()),
        ({"top_p": 0.5}, lambda p: torch.stack([p[p > one].sum() for one in p]) < 0.5),
    ],
)
def test_tokens_are_drawn_from_the_named_distribution(
    sampler: Any, folder: str, options: dict[str, Any], allowed: Any
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    count = 1000
    drawn = sampler.sample([[3, 5]], SamplingParams(n=count, max_new_tokens=1, seed=0, **options))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[3, 5]])).logits[0, -1] / options.get("temperature", 1.0)
    probabilities = logits.softmax(0)
    expected = torch.where(allowed(probabilities), probabilities, 0)
    expected /= expected.sum()
    shares = torch.bincount(torch.tensor([row[-1] for row in ids_of(drawn)]), minlength=len(expected)) / count
    assert set(shares.nonzero().flatten().tolist()) <= set(expected.nonzero().flatten().tolist())
    assert float((shares - expected).abs().max()) < 4 * (0.25 / count) ** 0.5


def test_texts_chats_and_mappings_are_prompts(sampler: Any) -> None:
    tokenizer, params = tiny_tokenizer(), SamplingParams(max_new_tokens=5, seed=0)
    text = "user: Which types are numbers?\nassistant: "
    chat = [{"role": "user", "content": "Which types are numbers?"}]
    rollouts = sampler.sample([{"prompt": text, "answer": 1}, {"prompt": chat, "answer": 2}], params)
    assert rollouts.prompts == [text, chat] and rollouts.columns == {"answer": [1, 2]}
    first, second = ids_of(rollouts)
    prompt = tokenizer(text)["input_ids"]
    assert first == second == ids_of(sampler.sample([prompt], params))[0]
    assert rollouts.completions == [tokenizer.decode(first[len(prompt) :], skip_special_tokens=True)] * 2


def test_a_stop_is_in_the_ids_and_not_in_the_text(sampler: Any) -> None:
    tokenizer, prompts = tiny_tokenizer(), ["The integer", "A class"]
    options: dict[str, Any] = {"n": 4, "max_new_tokens": 40, "seed": 3, "temperature": 2.0}
    free = sampler.sample(prompts, SamplingParams(**options))
    stop = (free.completions[0][4:6], free.completions[5][9:10])
    stopped = sampler.sample(prompts, SamplingParams(**options, stop=stop))
    assert "stop" in stopped.finish
    for i, (text, whole, why) in enumerate(zip(stopped.completions, free.completions, stopped.finish, strict=True)):
        ends = [whole.find(one) for one in stop if one in whole]
        assert text == whole[: min(ends, default=len(whole))]
        assert not ends or why == "stop"
        written = stopped.ids[i][stopped.mask[i].bool()].tolist()
        assert written == free.ids[i][free.mask[i].bool()].tolist()[: len(written)]
        assert not ends or any(one in tokenizer.decode(written) for one in stop)
        assert not ends or not any(one in tokenizer.decode(written[:-1]) for one in stop)


def test_the_end_token_ends_a_sequence(sampler: Any) -> None:
    rollouts = sampler.sample(["A class"], SamplingParams(n=64, max_new_tokens=60, seed=0, temperature=2.0))
    assert set(rollouts.finish) == {"stop", "length"}
    for row, why in zip(ids_of(rollouts), rollouts.finish, strict=True):
        assert (row.count(0), row[-1] == 0) == ((1, True) if why == "stop" else (0, False))
    assert not any("<end>" in text for text in rollouts.completions)


def test_a_prompt_that_is_too_long_is_an_error_and_the_engine_goes_on(sampler: Any) -> None:
    with pytest.raises(Exception, match="384"):
        sampler.sample([[1], [1] * 500], SamplingParams(max_new_tokens=2))
    assert len(sampler.sample([[1]], SamplingParams(max_new_tokens=2))) == 1


def test_an_argument_of_the_samplers_own_is_an_error(session: None, folder: str) -> None:
    with pytest.raises(ValueError, match="logprobs_mode is set by the sampler"):
        VLLMSampler(folder, logprobs_mode="raw_logits")


def test_a_sync_brings_the_trainers_weights_and_drops_the_cache(sampler: Any, trainer: Any) -> None:
    """Of a model with a tied head; the prompt fills blocks of the prefix cache, which it is then read from."""
    prompt = [int(token) for token in torch.randint(1, 300, (300,), generator=torch.Generator().manual_seed(0))]
    params = SamplingParams(n=2, max_new_tokens=8, seed=0)
    sync = WeightSync(trainer, sampler)
    before = sampler.sample([prompt], params)
    assert mismatch(trainer.annotate(before, "proximal"))["worst"] < 1.0001
    for version in (1, 2):
        trainer.forward_backward(before)
        trainer.step()
        old = sampler.sample([prompt], params)
        assert mismatch(trainer.annotate(old, "proximal"))["worst"] > 1.01
        assert sync() == version
        new = sampler.sample([prompt], params)
        ratio = mismatch(trainer.annotate(new, "proximal"))
        print(ratio)
        assert ratio["worst"] < 1.0001
        assert {int(one) for row in new.versions for one in row} == {version}


def test_nothing_is_sampled_between_a_sync_that_the_engine_refuses_and_one_that_works(
    sampler: Any, trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_new_tokens=4, seed=0)
    sync = WeightSync(trainer, sampler)
    buffer = sampler._engine.buffer
    with monkeypatch.context() as patch:
        rows = [row for row in buffer.description["rows"] if row[0] != "model.norm.weight"]
        patch.setitem(buffer.description, "rows", rows)
        with pytest.raises(WeightSyncError, match=r"has not taken version \d+.*model\.norm\.weight"):
            sync()
    with pytest.raises(RuntimeError, match=r"has not taken version .*; sync again"):
        sampler.sample([[5, 6, 7]], params)
    version = sync()
    answer = sampler.sample([[5, 6, 7]], params)
    assert mismatch(trainer.annotate(answer, "proximal"))["worst"] < 1.0001
    assert {int(one) for row in answer.versions for one in row} == {version}
