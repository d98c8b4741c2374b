"""What a model does not compute reliably is refused by name: ids, lengths across a border, packs."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from tiny_models import SIZES, VOCABULARY, Build, logprobs_of, ragged, sgd
from transformers import LlamaConfig
from transformers.models.bloom.configuration_bloom import BloomConfig
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.mamba.configuration_mamba import MambaConfig
from transformers.models.phi3.configuration_phi3 import Phi3Config

from twinkle.engines import Rollouts, SamplingParams, TransformersModel, TransformersSampler
from twinkle_engines.models.passes import rope_border

FACTORS: dict[str, Any] = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
LONG = Phi3Config(
    **SIZES,
    pad_token_id=0,
    original_max_position_embeddings=16,
    rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16, **FACTORS},
)
SHORT, OTHER = list(range(2, 12)), list(range(2, 42))


def scaled(kind: str, **more: Any) -> LlamaConfig:
    sizes = {**SIZES, "max_position_embeddings": 16}
    return LlamaConfig(**sizes, rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **more})


@pytest.mark.parametrize("options", [{}, {"max_tokens": 40}])
def test_an_id_that_the_model_does_not_know_is_named(options: dict[str, Any]) -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd, **options)
    for token, place in itertools.product([VOCABULARY, VOCABULARY + 900, -1], [0, 2, 4]):
        ids = [[1, 2, 3, 4, 5], [5, 4, 3]]
        ids[0][place] = token
        for call in (model.forward_backward, partial(model.annotate, column="found")):
            with pytest.raises(ValueError, match=rf"id {token}, .*there are {VOCABULARY} "):
                call(Rollouts(ids))
        model.forward_backward(Rollouts([[1, 2, 3]]))  # what could not be read leaves nothing behind


def test_a_label_that_the_head_does_not_predict_is_named() -> None:
    batch = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[-100, 2, VOCABULARY]])}
    with pytest.raises(ValueError, match=f"label {VOCABULARY}"):
        TransformersModel(Build("llama"), optimizer=sgd).forward_backward(batch)


@pytest.mark.parametrize(
    ("config", "border"),
    [
        (LONG, (16, True)),
        (scaled("dynamic", factor=4.0), (16, False)),
        (scaled("default"), (None, True)),
        (scaled("yarn", factor=4.0), (None, True)),
        (Gemma3TextConfig(**SIZES, sliding_window=8), (None, True)),
    ],
)
def test_borders_are_those_of_the_config(config: Any, border: tuple[int | None, bool]) -> None:
    assert rope_border(config) == border


@pytest.mark.parametrize("options", [{}, {"max_tokens": 64}])
def test_lengths_on_both_sides_of_a_border_are_refused(options: dict[str, Any]) -> None:
    model = TransformersModel(LONG, optimizer=sgd, **options)
    alone = [logprobs_of(model, Rollouts([ids]))[0] for ids in (SHORT, OTHER)]
    for call in (partial(model.annotate, column="found"), model.forward_backward):
        with pytest.raises(ValueError, match="beyond 16 tokens"):
            call(Rollouts([SHORT, OTHER]))
    one = TransformersModel(LONG, optimizer=sgd, micro_batch_size=1)
    for _ in range(2):  # not computed at once
        assert [len(row) for row in logprobs_of(one, Rollouts([SHORT, OTHER]))] == [len(row) for row in alone]
    dynamic = TransformersModel(scaled("dynamic", factor=4.0), optimizer=sgd)
    with pytest.raises(ValueError, match="beyond 16 tokens"):
        logprobs_of(dynamic, Rollouts([OTHER]))


def test_an_answer_does_not_cross_a_border() -> None:
    sampler = TransformersSampler(LONG)
    for prompts, most in (([SHORT], 6), ([OTHER], 6)):
        assert len(sampler.sample(prompts, SamplingParams(max_new_tokens=most)).ids) == 1
    for prompts, most in (([SHORT], 7), ([SHORT, OTHER], 4)):
        with pytest.raises(ValueError, match="beyond 16 tokens"):
            sampler.sample(prompts, SamplingParams(max_new_tokens=most))


MAMBA = MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, state_size=4, use_mambapy=False)


@pytest.mark.parametrize("config", [BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4), MAMBA])
def test_a_model_that_reads_over_the_borders_of_packs_is_refused(config: Any) -> None:
    torch.manual_seed(3)
    model = TransformersModel(config, optimizer=sgd)
    with pytest.raises((ValueError, TypeError), match=r"reads on over the border of packed sequences|position_ids"):
        model.forward_backward([ragged(2, 1)])
    assert model.forward_backward(ragged(2, 1))["tokens"] > 0


def test_packs_are_checked_again_when_other_weights_have_come(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr("twinkle_engines.models.passes.check_packs", lambda *given: calls.append(given))
    model = TransformersModel(Build("llama"), optimizer=sgd, max_tokens=20)
    for _ in range(2):
        logprobs_of(model, ragged(2, 1))
    assert len(calls) == 1
    model.save_state(str(tmp_path))
    model.load_state(str(tmp_path))
    logprobs_of(model, ragged(2, 1))
    model.on_weights(1)
    logprobs_of(model, ragged(2, 1))
    assert len(calls) == 3
