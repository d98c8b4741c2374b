"""Preferences: pairs of answers to a prompt as rollouts, in rows of two of which the chosen one stands first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.chats import as_chat, rows_of, template_of
from twinkle_engines.batches.rollouts import Rollouts
from twinkle_engines.batches.supervised import tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase


def preferences(
    rows: Sequence[Any],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
    *,
    tools: Sequence[Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Rollouts:
    """Rollouts of pairs for losses such as "dpo"; a `collate_fn` of a DataLoader with `partial`.

    The forms are those of TRL's datasets for preferences.

    Args:
        rows: Each a mapping with "chosen" and "rejected", texts or chats, and their "prompt". Without a prompt it is
            what both begin with. The answers count, as in `supervised`.
        tokenizer: With a template, for chats.
        max_length: Tokens of a sequence at most; what is beyond is cut off. None for all.
        tools: Tools for the template: JSON schemas, or functions.
        chat_template_kwargs: Variables of the template, such as `enable_thinking`.

    Returns:
        Rows of two sequences, the chosen one first.

    Raises:
        TypeError: A row is of no such form.
        ValueError: As for `supervised`; or the answers of a row are alike, so that nothing is preferred.
    """
    template: Any = template_of(tokenizer, tools, chat_template_kwargs)
    pairs = []
    for row in rows_of("rows", rows):
        if not isinstance(row, Mapping) or not {"chosen", "rejected"} <= {*row}:
            raise TypeError(f'a preference is a mapping with "chosen" and "rejected", got {row!r:.80}')
        prompt, answers = _parted(row)
        made = [tokens_of({"prompt": prompt, "completion": one}, template.of(row)) for one in answers]
        if made[0] == made[1]:
            raise ValueError(f"the chosen and the rejected answer are alike, so nothing is preferred: {row!r:.80}")
        pairs += made
    ids, masks = ([part[i][:max_length] for part in pairs] for i in (0, 1))
    return Rollouts(ids, masks, counts=[2] * (len(pairs) // 2))


def _parted(row: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """The prompt and both answers: of rows without a prompt, what both begin with and what follows."""
    answers = [row["chosen"], row["rejected"]]
    if row.get("prompt") is not None:
        return row["prompt"], answers
    chosen, rejected = (one if isinstance(one, str) else as_chat(one) or [] for one in answers)
    alike = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
    begin = min(len(chosen), len(rejected)) if alike is None else alike
    if begin and chosen[begin - 1] == " ":  # of a text: a token has its space before it, as in TRL
        begin -= 1
    return chosen[:begin], [chosen[begin:], rejected[begin:]]
