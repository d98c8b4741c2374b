"""A sequence has the numbers that it has alone, whatever stands beside it, or the model is refused."""

from __future__ import annotations

import os
import random
from copy import deepcopy
from typing import Any

import pytest
import torch
from tiny_models import CONFIGS, SIZES, plain_logprobs, sgd
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, LlamaConfig, MambaConfig
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bloom.configuration_bloom import BloomConfig
from transformers.models.ctrl.configuration_ctrl import CTRLConfig
from transformers.models.doge.configuration_doge import DogeConfig
from transformers.models.falcon_h1.configuration_falcon_h1 import FalconH1Config
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.jamba.configuration_jamba import JambaConfig
from transformers.models.lfm2.configuration_lfm2 import Lfm2Config
from transformers.models.phi3.configuration_phi3 import Phi3Config
from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig
from transformers.models.reformer.configuration_reformer import ReformerConfig
from transformers.models.roc_bert.configuration_roc_bert import RoCBertConfig
from transformers.models.xglm.configuration_xglm import XGLMConfig

from twinkle.engines import Rollouts, SamplingParams, TransformersModel, TransformersSampler, mismatch
from twinkle_engines.models.neighbours import Neighbours, measure_packs, measure_rows

PROGRAMS = int(os.environ.get("NEIGHBOUR_PROGRAMS", "1"))
SMALL: dict[str, Any] = {name: value for name, value in SIZES.items() if name != "initializer_range"}
BORDER = 16


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **more}


LONG = Phi3Config(
    **SIZES,
    pad_token_id=0,
    original_max_position_embeddings=BORDER,
    sliding_window=11,
    rope_parameters=rope(
        "longrope", short_factor=[1.0] * 4, long_factor=[4.0] * 4, original_max_position_embeddings=BORDER
    ),
)
DYNAMIC = LlamaConfig(**{**SIZES, "max_position_embeddings": BORDER}, rope_parameters=rope("dynamic", factor=4.0))
EXACT: dict[str, Any] = {
    **CONFIGS,
    "gemma3": Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=4, pad_token_id=0),
    "ctrl": CTRLConfig(vocab_size=61, n_embd=32, n_layer=2, n_head=4, dff=48, n_positions=64),
    "gpt2": GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64),
}
LEAKING: dict[str, Any] = {
    "bloom": BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4),
    "mamba": MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, state_size=4),
    "xglm": XGLMConfig(vocab_size=61, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4),
    "lfm2": Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]),
    "jamba": JambaConfig(
        **SMALL, attn_layer_period=2, attn_layer_offset=1, num_experts=2, mamba_d_state=4, use_mamba_kernels=False
    ),
    "falcon_h1": FalconH1Config(
        **SMALL, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4, head_dim=8, pad_token_id=0
    ),
}
RECURRENT = RecurrentGemmaConfig(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=4,
    num_hidden_layers=3,
    lru_width=32,
    attention_window_size=8,
    num_key_value_heads=1,
    head_dim=8,
)
REFORMER = ReformerConfig(
    vocab_size=61,
    hidden_size=32,
    feed_forward_size=48,
    attention_head_size=8,
    num_attention_heads=4,
    attn_layers=["local", "lsh"],
    axial_pos_shape=[8, 8],
    axial_pos_embds_dim=[8, 24],
    max_position_embeddings=64,
    is_decoder=True,
)
DOGE = DogeConfig(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
CPU = torch.device("cpu")


def built(config: Any, dtype: str = "float32") -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return AutoModelForCausalLM.from_config(deepcopy(config), dtype=getattr(torch, dtype))  # written into it


@pytest.mark.parametrize(
    ("name", "dtype"), [*[(name, "float32") for name in EXACT], ("llama", "bfloat16"), ("qwen3-moe", "bfloat16")]
)
def test_a_model_whose_sequences_stand_alone_is_taken(name: str, dtype: str) -> None:
    model = built(EXACT[name], dtype)
    found = [measure_rows(model, CPU, "right"), measure_rows(model, CPU, "left"), measure_packs(model, CPU)]
    assert found == [Neighbours()] * 3


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, "float32" if name in ("mamba", "falcon_h1") else "bfloat16") for name in LEAKING]
)
def test_a_model_that_reads_over_a_border_of_a_pack_is_refused_at_any_size_of_the_leak(name: str, dtype: str) -> None:
    model = built(LEAKING[name], dtype)
    assert measure_rows(model, CPU, "right") == Neighbours()
    with pytest.raises(ValueError, match="reads on over the border of packed sequences"):
        measure_packs(model, CPU)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [BertConfig, RoCBertConfig])
def test_a_model_that_knows_what_it_is_to_predict_is_refused(kind: Any, dtype: str) -> None:
    """As a config of BERT has it without is_decoder: each token sees all others, and the loss soon is 0."""
    sizes: dict[str, Any] = {name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_attention_heads")}
    sizes |= {"num_hidden_layers": 2, "intermediate_size": 48, "pad_token_id": 0}
    model = built(kind(**sizes), dtype)
    for look in (measure_rows, measure_packs):
        arguments: Any = (model, CPU, "right") if look is measure_rows else (model, CPU)
        with pytest.raises(ValueError, match="is_decoder=True"):
            look(*arguments)
    assert measure_rows(built(kind(**sizes, is_decoder=True), dtype), CPU, "right") == Neighbours()


def test_a_model_that_chooses_among_many_tokens_is_not_padded_and_not_packed() -> None:
    model = built(DOGE)
    assert [measure_rows(model, CPU, side).padded for side in ("left", "right")] == [False, False]
    with pytest.raises(ValueError, match="keep_window_size"):
        measure_packs(model, CPU)


def test_a_model_whose_own_code_fails_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="ReformerModelWithLMHead does not compute input_ids"):
        measure_rows(built(REFORMER), CPU, "right")
    with pytest.raises(ValueError, match="ReformerModelWithLMHead does not compute input_ids"):
        measure_packs(built(REFORMER), CPU)


@pytest.mark.parametrize("dtype", ["float32"])
def test_a_state_that_reads_padding_is_found(dtype: str) -> None:
    model = built(RECURRENT, dtype)
    found = measure_rows(model, CPU, "left")
    assert not found.padded and found.groups([3, 5, 3]) == [[0, 2], [1]]
    assert measure_rows(model, CPU, "right").padded


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_length_from_which_frequencies_change_is_found(dtype: str) -> None:
    for side in ("left", "right"):
        assert measure_rows(built(LONG, dtype), CPU, side) == Neighbours(True, BORDER, True)
        assert measure_rows(built(DYNAMIC, dtype), CPU, side) == Neighbours(True, BORDER, False)
    assert Neighbours(True, BORDER, True).groups([1, BORDER, BORDER + 1, 40, 0]) == [[0, 1, 4], [2, 3]]
    with pytest.raises(ValueError, match=f"at most {BORDER} tokens"):
        Neighbours(True, BORDER, False).group(BORDER + 1)


@pytest.mark.parametrize("options", [{"micro_batch_size": 3}, {"max_tokens": 64}])
@pytest.mark.parametrize("seed", range(PROGRAMS))
@pytest.mark.parametrize("config", [LONG, EXACT["gemma3"]])
def test_losses_and_gradients_are_those_of_sequences_alone(config: Any, seed: int, options: dict[str, Any]) -> None:
    draw = random.Random(seed)
    lengths = [draw.choice([1, 2, 9, BORDER, BORDER + 1, 20, 40]) for _ in range(draw.randint(1, 7))] + [12]
    rows = [[draw.randrange(2, 61) for _ in range(n)] for n in lengths]
    alone = TransformersModel(lambda: built(config), optimizer=sgd, micro_batch_size=1)
    together = TransformersModel(lambda: built(config), optimizer=sgd, **options)
    expected = [plain_logprobs(built(config), torch.tensor(row)).detach() for row in rows]
    for row, own in zip(expected, together.logprobs(Rollouts(rows)), strict=True):
        assert_close(own, row, rtol=0, atol=2e-4)
    for normalize in ("token", "sequence"):
        losses = [m.forward_backward(Rollouts(rows), "cross_entropy", normalize)["loss"] for m in (alone, together)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
        assert together.step()["grad_norm"] == pytest.approx(alone.step()["grad_norm"], rel=1e-3)


def test_pairs_and_packs_over_a_border_are_refused_by_name() -> None:
    rows = [list(range(2, 12)), list(range(2, 42))]
    model = TransformersModel(lambda: built(LONG), optimizer=sgd)
    made = Rollouts(rows, counts=[2], ref_logprobs=[torch.zeros(len(row)) for row in rows])
    with pytest.raises(ValueError, match="border"):
        model.forward_backward(made, "dpo")
    with pytest.raises(ValueError, match="a pack has sequences"):
        model.logprobs(Rollouts(rows).pack(64))
    dynamic = TransformersModel(lambda: built(DYNAMIC), optimizer=sgd)
    dynamic.forward_backward(Rollouts(rows[:1]))
    with pytest.raises(ValueError, match="40 tokens"):
        dynamic.forward_backward(Rollouts(rows))


@pytest.mark.parametrize("config", [LONG, DYNAMIC])
def test_an_answer_ends_at_the_border_and_has_the_log_probabilities_of_training(config: Any) -> None:
    sampler = TransformersSampler(lambda: built(config))
    trainer = TransformersModel(lambda: built(config), optimizer=sgd)
    asked = [[3, 5, 7], [4] * (BORDER - 1), [9] * 12]
    with pytest.warns(UserWarning, match="answers ended at 16 tokens"):
        made = sampler.sample(asked, SamplingParams(temperature=0, max_new_tokens=9))
    assert [n for n, reason in zip(made.lengths, made.finish or (), strict=True) if reason == "length"][-1] == BORDER
    assert max(made.lengths) == BORDER and mismatch(made, trainer.logprobs(made))["worst"] < 1.0001
    with pytest.raises(ValueError, match="fewer or more than 16"):
        sampler.sample([[3] * BORDER], SamplingParams(max_new_tokens=1))


def test_looking_leaves_no_frequencies_of_long_sequences_behind() -> None:
    row = [5, 7] * (BORDER // 2)
    model = built(DYNAMIC)
    measure_rows(model, CPU, "right")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([row])).logits
        assert_close(logits, built(DYNAMIC)(input_ids=torch.tensor([row])).logits)
