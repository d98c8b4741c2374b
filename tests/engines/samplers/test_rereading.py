"""An answer has the log-probabilities that it was written with when it is read in one pass, or the model is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import Build, sgd
from transformers import AutoModelForCausalLM
from transformers.models.prophetnet.configuration_prophetnet import ProphetNetConfig
from transformers.models.roberta.configuration_roberta import RobertaConfig
from transformers.models.rwkv.configuration_rwkv import RwkvConfig
from transformers.models.xlstm.configuration_xlstm import xLSTMConfig

from twinkle.engines import Rollouts, SamplingParams, TransformersModel, TransformersSampler, mismatch
from twinkle_engines.batches.padded import padded_parts
from twinkle_engines.models.forward import token_logprobs
from twinkle_engines.samplers.answer import Answer
from twinkle_engines.samplers.rereading import Rereading

RWKV = RwkvConfig(
    vocab_size=61,
    hidden_size=32,
    attention_hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    context_length=64,
)
XLSTM = xLSTMConfig(
    vocab_size=61, hidden_size=32, embedding_dim=32, num_hidden_layers=2, num_blocks=2, num_heads=4, chunk_size=8
)
"""Its own cache has another shape than its layers: Transformers' generate raises with it."""
ROBERTA = RobertaConfig(
    vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, is_decoder=True
)
PROPHETNET = ProphetNetConfig(
    vocab_size=61,
    hidden_size=32,
    num_decoder_layers=1,
    num_decoder_attention_heads=4,
    decoder_ffn_dim=48,
    max_position_embeddings=64,
)
PARAMS = SamplingParams(n=2, max_new_tokens=4, seed=1, temperature=0.7)


def built(config: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for one in model.parameters():
                if one.dim() > 1:
                    one.normal_(0, 0.3)
    return model


@pytest.mark.parametrize("config", [RWKV, XLSTM], ids=["rwkv", "xlstm"])
def test_a_model_that_keeps_tokens_otherwise_than_it_reads_them_reads_them_anew(config: Any) -> None:
    sampler = TransformersSampler(lambda: built(config))
    trainer = TransformersModel(lambda: built(config), optimizer=sgd)
    for prompts in ([[3, 5]], [[3, 5], [7, 9], [11, 4]]):
        made = sampler.sample(prompts, PARAMS)
        assert mismatch(made, trainer.logprobs(made))["worst"] < 1.001


def test_a_model_that_writes_at_other_positions_than_it_reads_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainer agrees"):
        TransformersSampler(lambda: built(ROBERTA)).sample([[3, 5, 7]], PARAMS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_what_is_no_rounding_is_found_in_a_short_type_too(family: str, dtype: str) -> None:
    """A model that writes with other numbers than it reads may be off by less than rounding is in the deepest ones."""
    model = Build(family)().to(getattr(torch, dtype)).eval()
    rows = [([3, 5, 7], [4] * 9), ([8] * 9, [6, 2, 9]), ([11, 4], [13, 1, 1, 7, 20])]
    for share, holds in ((0.0, True), (1e-4, True), (0.01, dtype != "float32"), (0.06, False), (0.3, False)):
        answers = []
        for prompt, ids in rows:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + ids]), use_cache=False).logits[0].float()
            read = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
            answers.append(Answer(prompt, ids, read + share * logits.std(), "length"))
        with torch.no_grad():
            assert Rereading(model).holds(answers, 1.0) == holds, share


def test_a_model_that_writes_nothing_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Build("llama")().eval()
    rereading = Rereading(model)
    rereading.find_cache([3, 5])
    assert rereading.cached
    monkeypatch.setattr(model.config, "num_attention_heads", 3)  # as a config that does not fit its layers
    monkeypatch.setattr(model.model.layers[0].self_attn, "head_dim", 5)
    with pytest.raises(ValueError, match="LlamaForCausalLM writes nothing"):
        rereading.find_cache([3, 5])


def test_a_model_whose_own_code_fails_is_refused_by_name() -> None:
    def build() -> Any:
        model = Build("llama")()
        model.model.layers[0].self_attn.head_dim = 5  # as a config that does not fit its layers
        return model

    with pytest.raises(ValueError, match="LlamaForCausalLM does not compute"):
        TransformersSampler(build).sample([[3, 5, 7]], PARAMS)


def test_answers_are_read_again_when_they_are_twice_as_many_or_as_long() -> None:
    rereading = Rereading(Build("llama")().eval())

    def answers(count: int, length: int) -> list[Answer]:
        return [Answer([3], [4] * length, torch.zeros(length), "length") for _ in range(count)]

    with torch.no_grad():
        rereading._seen = (2, 4, 3)
        assert rereading.holds(answers(3, 5), 1.0)  # values that are wrong, and not looked at
        assert not rereading.holds(answers(4, 3), 1.0) and not rereading.cached
        with pytest.raises(ValueError, match="LlamaForCausalLM"):
            rereading.holds(answers(1, 8), 1.0)


def test_masks_are_numbers_for_models_that_calculate_with_them() -> None:
    batch = next(padded_parts(Rollouts([[3, 5, 7, 9], [4, 6]]), None))
    assert token_logprobs(built(PROPHETNET), batch).shape == (2, 4)
