"""Ends: the tokens that end an answer, in samplers, supervised tuning and exports alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def ends_of(tokenizer: PreTrainedTokenizerBase | None, *given: Any) -> list[int]:
    """The tokens that end an answer: those that are given, then the tokenizer's end, each once.

    Args:
        tokenizer: The tokenizer, if there is one.
        given: What generation configs have as `eos_token_id`: an id, several, or None.
    """
    own: Any = None if tokenizer is None else tokenizer.eos_token_id
    found: dict[int, None] = {}
    for ends in (*given, own):
        plain = ends.tolist() if hasattr(ends, "tolist") else ends
        several = plain if isinstance(plain, list | tuple | set) else [plain]
        found |= {int(end): None for end in several if end is not None}
    return list(found)
