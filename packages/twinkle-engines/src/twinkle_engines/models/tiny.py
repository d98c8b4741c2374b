"""A model for first programs and tests: a config and a tokenizer, made of text that Python ships, without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3Config

_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|end|>{% endgeneration %}{% else %}{{ message.content }}<|end|>{% endif %}"
    "\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tiny_model(
    *, vocabulary: int = 512, hidden_size: int = 64, layers: int = 2
) -> tuple[Qwen3Config, PreTrainedTokenizerBase]:
    """A config of a small causal language model, with random weights, and a tokenizer with a chat template.

    The tokenizer learns its tokens from Python's own help texts, at each call (about a second). The template has
    {% generation %} marks, and each turn ends with the end token.

    Args:
        vocabulary: Tokens, at least 258: those of single bytes, and two that mark turns.
        hidden_size: Of the model; a multiple of 32.
        layers: Of the model.

    Returns:
        `(config, tokenizer)`, for `TransformersModel(config, ...)` and `TransformersSampler(config, tokenizer=...)`.

    Raises:
        ImportError: The libraries of the extra `hf` are missing.
    """
    from twinkle_engines.models.build import check_installed

    check_installed("tiny_model")
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    marks = ["<|end|>", "<|start|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator([topics[name] for name in sorted(topics)[:40]], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|end|>", pad_token="<|end|>", additional_special_tokens=["<|start|>"]
    )
    tokenizer.chat_template = _TEMPLATE
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // 16,
        num_key_value_heads=hidden_size // 32,
        head_dim=16,
        max_position_embeddings=1024,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    return config, tokenizer
