"""What of a model is divided by layers, and what with the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import PlainLoop, ragged, sgd
from torch.testing import assert_close
from transformers import AutoModelForCausalLM
from transformers.models.zamba.configuration_zamba import ZambaConfig

from twinkle.engines import TransformersModel

ZAMBA = ZambaConfig(
    vocab_size=61,
    hidden_size=32,
    attention_hidden_size=64,
    intermediate_size=48,
    num_hidden_layers=4,
    layers_block_type=["linear_attention", "hybrid", "linear_attention", "hybrid"],
    num_attention_heads=4,
    attention_head_dim=16,
    num_key_value_heads=4,
    max_position_embeddings=64,
    mamba_dt_rank=4,
    mamba_d_state=4,
    use_mamba_kernels=False,
)


def zamba() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return AutoModelForCausalLM.from_config(ZAMBA)


def test_a_block_that_layers_share_is_trained_as_in_one_process() -> None:
    trainer = TransformersModel(zamba, optimizer=sgd, micro_batch_size=2)
    plain = PlainLoop(zamba(), sgd)
    for seed in (1, 2):  # the second loss follows from the first step
        batch = ragged(4, seed)
        loss, norm, _ = plain.train([batch])
        assert trainer.forward_backward(batch)["loss"] == pytest.approx(loss[0], rel=1e-4)
        assert_close(trainer.step()["grad_norm"], norm, rtol=1e-3, atol=1e-4)
