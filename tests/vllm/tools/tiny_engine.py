"""A tiny model in a folder, with heads of 64, which vLLM has kernels for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tiny_tokenizer import tiny_tokenizer
from transformers import AutoModelForCausalLM, Qwen2Config

if TYPE_CHECKING:
    from pathlib import Path

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "eos_token_id": 0,
}
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 384,
    "enable_chunked_prefill": False,
}
"""Arguments of the engine for this machine: after a part of a prompt vLLM takes a draw of its generator back, which
generators of a CPU do not do."""


def save_tiny(folder: Path) -> str:
    """A model with random weights, also where they usually start alike, and its tokenizer."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES, tie_word_embeddings=True))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)
