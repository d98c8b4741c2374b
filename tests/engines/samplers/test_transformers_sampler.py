from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tiny_models import CONFIGS, Build, adamw, logprobs_of
from tiny_tokenizer import tiny_tokenizer
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, Qwen3Config

import twinkle
from twinkle import DeviceGroup, DeviceMesh, WeightSync, WeightSyncError, concat
from twinkle.engines import Rollouts, SamplingParams, TransformersModel, TransformersSampler, load, save

if TYPE_CHECKING:
    from pathlib import Path

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
    for mask, own, theirs in zip(rollouts.mask, rollouts.logprobs, logprobs_of(trainer, rollouts), strict=True):
        assert int(mask.sum()) == 9
        assert_close(own, torch.where(mask.bool(), theirs, 0), rtol=0, atol=1e-4)


@pytest.mark.parametrize("options", [{"temperature": 0.5}, {"temperature": 2, "top_k": 5}, {"temperature": 0}])
def test_logprobs_are_those_at_the_temperature_before_tokens_are_left_out(options: dict[str, Any]) -> None:
    made = TransformersSampler(Build("qwen2")).sample(IDS[:2], SamplingParams(max_new_tokens=4, seed=1, **options))
    told = options["temperature"] or 1.0
    assert made.temperatures == [told] * 2 and made.logprobs is not None
    for ids, prompt, own in zip(made.ids, IDS, made.logprobs, strict=False):
        with torch.no_grad():
            logits = Build("qwen2")()(input_ids=ids[None]).logits[0, :-1] / told
        right = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        assert_close(own[len(prompt) :], right[len(prompt) - 1 :], rtol=0, atol=1e-4)


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
    from twinkle_engines.samplers.sampler import RowSeeds

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
        for own, theirs, mask in zip(after.logprobs, logprobs_of(trainer, after), after.mask, strict=True):
            assert_close(own, torch.where(mask.bool(), theirs, 0), rtol=0, atol=1e-4)
        assert ids_of(before) != ids_of(after)
        assert {int(version) for row in after.versions for version in row} == {1}
        with pytest.raises(WeightSyncError, match="trains its weights"):
            WeightSync(sampler, trainer)()


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (["text"], {}, "texts and chats need a tokenizer"),
        ([[]], {}, "has no tokens"),
        ([[1]], {"stop": ("x",)}, "stop is texts, which need a tokenizer"),
        ([{"prompt": [1], "a": 1}, {"a": 1}], {}, 'a mapping with a "prompt"'),
    ],
)
def test_prompts_that_cannot_be_read_are_errors(prompts: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformersSampler(Build("llama")).sample(prompts, SamplingParams(**options))


def test_a_mesh_that_divides_the_model_is_an_error() -> None:
    with twinkle.session("threads", groups=[DeviceGroup("sampler", 2, "CPU")]):
        mesh = DeviceMesh.from_sizes(tp_size=2, device_type="cpu")
        with pytest.raises(ValueError, match="use dp_size=2 alone"):
            TransformersSampler(Build("llama"), device_mesh=mesh, remote_group="sampler")


def test_two_components_draw_differently_and_a_session_draws_again_what_it_drew() -> None:
    def build() -> Any:
        torch.manual_seed(3)  # a user's own seed makes no two samplers alike
        return Build("llama")()

    def drawn(seed: int) -> list[list[list[int]]]:
        groups = [DeviceGroup("one", 1, "CPU"), DeviceGroup("two", 1, "CPU")]
        params = SamplingParams(n=3, max_new_tokens=12)
        with twinkle.session("threads", groups=groups, seed=seed):
            samplers = [TransformersSampler(build, remote_group=group) for group in ("one", "two", "one", "one")]
            return [ids_of(twinkle.get(sampler.sample([[5, 6]], params))) for sampler in samplers for _ in range(2)]

    first = drawn(7)
    assert len({str(rows) for rows in first}) == 8  # two short answers may be the same by chance, not three
    assert drawn(7) == first
    assert not any(rows in first for rows in drawn(8))


def test_a_run_that_goes_on_draws_what_it_would_have_drawn() -> None:
    params = SamplingParams(n=2, max_new_tokens=12)
    with twinkle.session("local"):
        sampler = TransformersSampler(Build("llama"))
        before = [ids_of(sampler.sample([[5, 6]], params)) for _ in range(2)]
        sampler.on_weights(1)
        after = [ids_of(sampler.sample([[5, 6]], params)) for _ in range(2)]
    with twinkle.session("local"):
        again = TransformersSampler(Build("llama"))
        again.on_weights(1)  # the sync after a load
        assert [ids_of(again.sample([[5, 6]], params)) for _ in range(2)] == after
    assert not any(rows in before for rows in after)


def test_a_run_that_goes_on_without_a_sync_draws_other_answers_than_before(tmp_path: Path) -> None:
    params = SamplingParams(max_new_tokens=8)

    def drawn(sampler: Any, calls: int) -> list[list[list[int]]]:
        return [ids_of(sampler.sample([[5, 6], [7]], params)) for _ in range(calls)]

    with twinkle.session("local"):
        sampler = TransformersSampler(Build("llama"))
        before = drawn(sampler, 3)
        save(tmp_path, sampler=sampler)
        rest = drawn(sampler, 2)
    with twinkle.session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        again = TransformersSampler(Build("llama"), remote_group="one")
        load(tmp_path, sampler=again)
        after = drawn(again, 2)
    assert not any(rows in before for rows in rest + after)
    assert len({str(rows) for rows in before + rest}) == 5


class Broken:
    """Logits of one value, at some place of the vocabulary."""

    def __init__(self, value: float, place: slice) -> None:
        self.value, self.place = value, place

    def __call__(self) -> Any:
        model = Build("llama")()
        with torch.no_grad():
            model.lm_head.weight[self.place] = self.value
        return model


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [slice(None), slice(4, 5)])
@pytest.mark.parametrize("temperature", [0, 0.7, 1])
def test_logits_that_are_not_finite_end_a_sample(value: float, place: slice, temperature: float) -> None:
    sampler = TransformersSampler(Broken(value, place), dtype="bfloat16" if temperature == 1 else "float32")
    with pytest.raises(ValueError, match="logits"):
        sampler.sample(IDS, SamplingParams(max_new_tokens=3, temperature=temperature))


def test_rows_of_several_sources_have_none_where_they_have_no_column() -> None:
    rows = [{"prompt": [5], "answer": "4"}, [6], {"prompt": [7], "tests": ["t"]}]
    sampler = TransformersSampler(Build("llama"), params=SamplingParams(max_new_tokens=2))
    whole = sampler.sample(rows)
    assert whole.columns == {"answer": ["4", None, None], "tests": [None, None, ["t"]]}
    assert concat([sampler.sample([row]) for row in rows]).columns == whole.columns


def test_special_tokens_are_shown_to_rewards_that_want_them() -> None:
    tokenizer = tiny_tokenizer().__class__(tokenizer_object=tiny_tokenizer().backend_tokenizer, eos_token="<end>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["the"]})
    end, special = (tokenizer.convert_tokens_to_ids(token) for token in ("<end>", "the"))

    def build() -> Any:
        model = build_text_model()
        model.resize_token_embeddings(len(tokenizer))
        model.generation_config.eos_token_id = None
        with torch.no_grad():
            model.lm_head.weight.zero_()
            model.lm_head.weight[[end, special]] = torch.randn(2, 32)
        return model

    sampler = TransformersSampler(build, tokenizer=tokenizer)
    for skips in (True, False):
        params = SamplingParams(n=8, max_new_tokens=4, seed=1, temperature=0.1, skip_special_tokens=skips)
        made = sampler.sample(["A class"], params)
        assert made.mask is not None and made.completions is not None
        written = [ids[mask.bool()].tolist() for ids, mask in zip(made.ids, made.mask, strict=True)]
        assert made.completions == ["" if skips else "the" * row.count(special) for row in written]


@pytest.mark.parametrize("wrong", [61, -1, 10**6])
def test_ids_beyond_the_vocabulary_are_named(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"{wrong}.*61 tokens"):
        TransformersSampler(Build("llama")).sample([[3], [5, wrong]], SamplingParams(max_new_tokens=2))


def test_a_sampler_that_sleeps_is_woken_and_a_trainer_shares_its_group() -> None:
    with twinkle.session("local", groups=[DeviceGroup("all", 1, "CPU")]):
        trainer = TransformersModel(Build("llama"), optimizer=adamw, remote_group="all")
        sampler = TransformersSampler(Build("llama", seed=9), remote_group="all")
        sync, params = WeightSync(trainer, sampler), SamplingParams(max_new_tokens=3, seed=1)
        sampler.sleep()
        with pytest.raises(RuntimeError, match=r"wake\(\)"):
            sampler.sample(IDS, params)
        sync()  # into the weights that sleep
        sampler.wake()
        found = sampler.sample(IDS, params)
        assert found == TransformersSampler(Build("llama")).sample(IDS, params).replace(versions=found.versions)
