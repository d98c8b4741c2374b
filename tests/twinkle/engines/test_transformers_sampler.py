from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import CONFIGS, Build, adamw
from tiny_tokenizer import tiny_tokenizer
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, Qwen3Config

import twinkle
from twinkle import DeviceGroup, DeviceMesh, WeightSync, WeightSyncError
from twinkle.engines import Rollouts, SamplingParams, TransformersModel, TransformersSampler

IDS = [[3, 5, 7], [11], [2, 4, 6, 8, 10, 12], [60, 1]]


def build_text_model() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Qwen3Config(**{**CONFIGS["qwen3"].to_diff_dict(), "vocab_size": 300, "eos_token_id": 0})
        return AutoModelForCausalLM.from_config(config)


def ids_of(rollouts: Rollouts) -> list[list[int]]:
    return [row.tolist() for row in rollouts.ids]


def test_logprobs_agree_with_the_trainers() -> None:
    sampler, trainer = TransformersSampler(Build("qwen2")), TransformersModel(Build("qwen2"), optimizer=adamw)
    params = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, n=3, max_new_tokens=9, seed=4)
    rollouts = sampler.sample(IDS, params)
    assert (len(rollouts), rollouts.counts, rollouts.prompts) == (4, [3] * 4, IDS)
    assert [row[: len(IDS[i // 3])] for i, row in enumerate(ids_of(rollouts))] == [ids for ids in IDS for _ in range(3)]
    assert rollouts.mask is not None and rollouts.logprobs is not None and rollouts.finish == ["length"] * 12
    for mask, own, theirs in zip(rollouts.mask, rollouts.logprobs, trainer.logprobs(rollouts), strict=True):
        assert int(mask.sum()) == 9
        assert_close(own, torch.where(mask.bool(), theirs, 0), rtol=0, atol=1e-4)


def test_an_answer_depends_on_its_seed_and_prompt_alone() -> None:
    sampler = TransformersSampler(Build("llama"))
    params = SamplingParams(n=2, max_new_tokens=12, seed=1)
    together = ids_of(sampler.sample(IDS, params))
    alone = [row for ids in reversed(IDS) for row in ids_of(sampler.sample([ids], params))]
    assert [alone[i] for i in (6, 7, 4, 5, 2, 3, 0, 1)] == together
    assert ids_of(TransformersSampler(Build("llama"), micro_batch_size=3).sample(IDS, params)) == together
    assert ids_of(sampler.sample(IDS, SamplingParams(n=2, max_new_tokens=12, seed=2))) != together
    with twinkle.session("threads", groups=[DeviceGroup("sampler", 3, "CPU")]):
        mesh = DeviceMesh.from_sizes(dp_size=3, device_type="cpu")
        split = TransformersSampler(Build("llama"), device_mesh=mesh, remote_group="sampler")
        assert ids_of(twinkle.get(split.sample(IDS, params))) == together
        assert len(twinkle.get(split.sample([], params))) == 0


def test_the_samplers_own_params_are_those_of_calls_without() -> None:
    params = SamplingParams(n=2, max_new_tokens=5, seed=1)
    sampler = TransformersSampler(Build("llama"), params=params)
    assert sampler.sample(IDS) == sampler.sample(IDS, params)
    assert sampler.sample(IDS, SamplingParams(max_new_tokens=3)).counts == [1] * 4
    with pytest.raises(ValueError, match="sample\\(\\) has no parameters"):
        TransformersSampler(Build("llama")).sample(IDS)


def test_without_a_seed_answers_differ() -> None:
    sampler = TransformersSampler(Build("llama"))
    params = SamplingParams(max_new_tokens=12)
    assert ids_of(sampler.sample(IDS, params)) != ids_of(sampler.sample(IDS, params))


def test_without_a_seed_a_prompt_that_is_asked_for_again_gets_another_answer() -> None:
    params = SamplingParams(n=2, max_new_tokens=12)
    asked = [IDS[0]] * 8
    with twinkle.session("threads", groups=[DeviceGroup("sampler", 4, "CPU")]):
        mesh = DeviceMesh.from_sizes(dp_size=4, device_type="cpu")
        split = TransformersSampler(Build("llama"), device_mesh=mesh, remote_group="sampler")
        rows = [ids for _ in range(2) for ids in ids_of(twinkle.get(split.sample(asked, params)))]
    assert len(set(map(tuple, rows))) > 16  # of 32: two short answers may be the same by chance
    alone = ids_of(TransformersSampler(Build("llama")).sample(asked, params))
    assert len(set(map(tuple, alone))) > 8


def test_ranks_of_one_data_rank_draw_the_same_without_a_seed() -> None:
    from twinkle.engines.sequence_seed import RowSeeds

    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2, device_type="cpu")

    @twinkle.remote_class()
    class Seeds:
        def __init__(self) -> None:  # as in a sampler, torch draws alike on all ranks here
            self.seeds = RowSeeds()

        @twinkle.remote_function(dispatch="all")
        def drawn(self) -> int:
            return self.seeds.jobs([[1]], 1, None)[0].seed

    with twinkle.session("threads", groups=[DeviceGroup("sampler", 4, "CPU")]):
        drawn = twinkle.get(twinkle.on("sampler", mesh).create(Seeds).drawn())
    assert isinstance(drawn, list)
    first, peer, second, other = drawn
    assert first == peer != second == other


def test_temperature_0_takes_the_likeliest_token() -> None:
    sampler, model = TransformersSampler(Build("llama")), Build("llama")()
    (written,) = ids_of(sampler.sample([[3, 5, 7]], SamplingParams(temperature=0, max_new_tokens=6)))
    for length in range(3, 9):
        assert int(model(input_ids=torch.tensor([written[:length]])).logits[0, -1].argmax()) == written[length]


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
def test_tokens_are_drawn_from_the_named_distribution(options: dict[str, Any], allowed: Any) -> None:
    sampler, model = TransformersSampler(Build("llama")), Build("llama")()
    count = 3000
    drawn = sampler.sample([[3, 5]], SamplingParams(n=count, max_new_tokens=1, seed=0, **options))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[3, 5]])).logits[0, -1] / options.get("temperature", 1.0)
    probabilities = logits.softmax(0)
    expected = torch.where(allowed(probabilities), probabilities, 0)
    expected /= expected.sum()
    shares = torch.bincount(torch.tensor([row[-1] for row in ids_of(drawn)]), minlength=len(expected)) / count
    assert set(shares.nonzero().flatten().tolist()) <= set(expected.nonzero().flatten().tolist())
    assert float((shares - expected).abs().max()) < 4 * (0.25 / count) ** 0.5


def test_texts_chats_and_mappings_are_prompts() -> None:
    tokenizer = tiny_tokenizer()
    sampler = TransformersSampler(build_text_model, tokenizer=tokenizer)
    params = SamplingParams(max_new_tokens=5, seed=0)
    text = "user: Which types are numbers?\nassistant: "
    chat = [{"role": "user", "content": "Which types are numbers?"}]
    rows = [{"prompt": text, "answer": 1}, {"prompt": chat, "answer": 2}]
    rollouts = sampler.sample(rows, params)
    assert rollouts.prompts == [text, chat] and rollouts.columns == {"answer": [1, 2]}
    first, second = ids_of(rollouts)
    assert first == second == ids_of(sampler.sample([tokenizer(text)["input_ids"]], params))[0]
    assert rollouts.completions == [tokenizer.decode(first[-5:], skip_special_tokens=True)] * 2


def test_a_stop_is_in_the_ids_and_not_in_the_text() -> None:
    tokenizer = tiny_tokenizer()
    sampler = TransformersSampler(build_text_model, tokenizer=tokenizer)
    prompts = ["The integer", "A class"] * 4
    params = SamplingParams(n=4, max_new_tokens=40, seed=3, temperature=2.0)
    free = sampler.sample(prompts[:2], params)
    assert free.completions is not None
    stop = (free.completions[0][4:6], free.completions[5][9:10])
    stopped = sampler.sample(prompts[:2], SamplingParams(n=4, max_new_tokens=40, seed=3, temperature=2.0, stop=stop))
    assert stopped.completions is not None and stopped.finish is not None and stopped.mask is not None
    assert "stop" in stopped.finish
    for i, (text, whole, why) in enumerate(zip(stopped.completions, free.completions, stopped.finish, strict=True)):
        ends = [whole.find(one) for one in stop if one in whole]
        assert text == whole[: min(ends, default=len(whole))]
        assert not ends or why == "stop"
        written = stopped.ids[i][stopped.mask[i].bool()].tolist()
        assert written == free.ids[i][free.mask[i].bool()].tolist()[: len(written)]  # type: ignore[index]  # it has a mask
        assert not ends or any(one in tokenizer.decode(written) for one in stop)


def test_the_end_token_ends_a_sequence() -> None:
    sampler = TransformersSampler(build_text_model, tokenizer=tiny_tokenizer())
    rollouts = sampler.sample(["A class"], SamplingParams(n=64, max_new_tokens=60, seed=0, temperature=2.0))
    assert rollouts.finish is not None and set(rollouts.finish) == {"stop", "length"}
    assert rollouts.completions is not None
    for row, why in zip(ids_of(rollouts), rollouts.finish, strict=True):
        assert (row.count(0), row[-1] == 0) == ((1, True) if why == "stop" else (0, False))
    assert not any("<end>" in text for text in rollouts.completions)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
@pytest.mark.parametrize("adapters", [False, True])
def test_the_trainers_weights_are_the_samplers_after_a_sync(adapters: bool) -> None:
    from peft import LoraConfig

    lora = LoraConfig(r=2, target_modules=["q_proj", "down_proj"]) if adapters else None
    with twinkle.session("local", groups=[DeviceGroup("all", 1, "CPU")]):
        trainer = TransformersModel(Build("qwen2"), optimizer=adamw, lora=lora, remote_group="all")
        sampler = TransformersSampler(Build("qwen2"), lora=lora, remote_group="all")
        sync = WeightSync(trainer, sampler)
        params = SamplingParams(max_new_tokens=8, seed=0)
        before = sampler.sample(IDS, params)
        for _ in range(3):
            trainer.forward_backward(before)
            trainer.step()
        assert sync() == 1
        after = sampler.sample(IDS, params)
        assert after.logprobs is not None and after.mask is not None and after.versions is not None
        for own, theirs, mask in zip(after.logprobs, trainer.logprobs(after), after.mask, strict=True):
            assert_close(own, torch.where(mask.bool(), theirs, 0), rtol=0, atol=1e-4)
        assert ids_of(before) != ids_of(after)
        assert {int(version) for row in after.versions for version in row} == {1}
        with pytest.raises(WeightSyncError, match="overwrite_trained"):
            WeightSync(sampler, trainer)()


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (["text"], {}, "texts and chats need a tokenizer"),
        ([[]], {}, "has no tokens"),
        ([[1]], {"stop": ("x",)}, "stop is texts, which need a tokenizer"),
        ([{"prompt": [1], "a": 1}, {"prompt": [1]}], {}, "the same further columns"),
    ],
)
def test_prompts_that_cannot_be_read_are_errors(prompts: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformersSampler(Build("llama")).sample(prompts, SamplingParams(**options))


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"top_p": 0}, {"min_p": 2}, {"n": 0}, {"max_new_tokens": 0}, {"stop": ("",)}]
)
def test_params_out_of_range_are_errors(options: dict[str, Any]) -> None:
    (field,) = options
    with pytest.raises(ValueError, match=f"{field} is"):
        SamplingParams(**options)


def test_a_mesh_that_divides_the_model_is_an_error() -> None:
    with twinkle.session("threads", groups=[DeviceGroup("sampler", 2, "CPU")]):
        mesh = DeviceMesh.from_sizes(tp_size=2, device_type="cpu")
        with pytest.raises(ValueError, match="dp_size=2 alone would do"):
            TransformersSampler(Build("llama"), device_mesh=mesh, remote_group="sampler")
