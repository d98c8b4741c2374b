"""Models for the examples: a small config with random weights, and a tokenizer that is trained here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from libraries import without

try:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config
except ModuleNotFoundError as error:
    sys.exit(without(error.name))

if TYPE_CHECKING:
    from collections.abc import Iterable

END = "<end>"


def of_words(texts: Iterable[str]) -> tuple[Qwen3Config, PreTrainedTokenizerFast]:
    """A model whose tokens are the words of some texts."""
    tokenizer = Tokenizer(models.WordLevel())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=[END]))
    return _model(tokenizer, head_dim=32, num_key_value_heads=4)


def of_pieces(texts: Iterable[str], vocabulary: int) -> tuple[Qwen3Config, PreTrainedTokenizerFast]:
    """A model whose tokens are the frequent pieces of some texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[END]))
    return _model(tokenizer, head_dim=16, num_key_value_heads=2)


def from_path(path: str) -> tuple[str, Any]:
    """A model in a folder or on a hub, and its tokenizer."""
    return path, AutoTokenizer.from_pretrained(path)


def _model(tokenizer: Tokenizer, **heads: Any) -> tuple[Qwen3Config, PreTrainedTokenizerFast]:
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = Qwen3Config(vocab_size=tokenizer.get_vocab_size(), eos_token_id=0, num_attention_heads=4, **sizes, **heads)
    return config, PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
