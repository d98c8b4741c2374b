"""Supervision: texts and chats for supervised tuning, where the answers count and the prompts do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twinkle.engines.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase


def supervised(rows: Sequence[Any], tokenizer: PreTrainedTokenizerBase, max_length: int | None = None) -> Rollouts:
    """Rollouts of examples, whose mask has the tokens of the answers; a `collate_fn` of a DataLoader with `partial`.

    The forms are those of TRL's datasets ("Dataset formats and types" in its documentation).

    Args:
        rows: Each is a chat, a list of messages with "role" and "content"; a mapping with a chat as "messages"; or a
            mapping with "prompt" and "completion", both texts. In a chat the turns of the assistant count, as the
            tokenizer's template ends them. A completion ends with the tokenizer's end token.
        tokenizer: With a template, for chats.
        max_length: Tokens of a sequence at most; what is beyond is cut off. None for all.

    Raises:
        TypeError: A row is of no such form.
        ValueError: The template writes a chat's first turns in another way when turns follow: then there is no telling
            which tokens of the whole chat are the answer's.
    """
    pairs = [_tokens(row, tokenizer) for row in rows]
    return Rollouts([ids[:max_length] for ids, _ in pairs], [mask[:max_length] for _, mask in pairs])


def supervised_packs(
    packs: Sequence[Sequence[Any]], tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> list[Rollouts]:
    """The same for a loader that packs: rollouts of each pack, which a model computes at once, without padding.

    The loader's `lengths` are those of `supervised(rows, tokenizer, max_length)`.

    Args:
        packs: Each a list of rows.
        tokenizer: As for `supervised`.
        max_length: As for `supervised`.
    """
    return [supervised(rows, tokenizer, max_length) for rows in packs]


def _tokens(row: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The ids of one example, and 1 at each that counts."""
    chat = row.get("messages") if isinstance(row, Mapping) else row
    if isinstance(chat, list) and chat and all(isinstance(turn, Mapping) and "role" in turn for turn in chat):
        return _chat([dict(turn) for turn in chat], tokenizer)
    if isinstance(row, Mapping) and isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str):
        prompt = list(tokenizer.encode(row["prompt"]))
        answer = list(tokenizer.encode(row["completion"], add_special_tokens=False))
        end: Any = tokenizer.eos_token_id
        if end is not None and answer[-1:] != [end]:
            answer.append(end)
        return prompt + answer, [0] * len(prompt) + [1] * len(answer)
    raise TypeError(
        f'an example is a chat, a mapping with "messages", or one with the texts "prompt" and "completion", got '
        f"{type(row).__name__} {row!r:.60}"
    )


def _chat(chat: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """As for one example; what is before an answer is tokenized apart from it, as where a model continues it."""
    text, done = _written(chat, tokenizer, open_turn=False), 0
    ids: list[int] = []
    mask: list[int] = []
    borders = []
    for i, turn in enumerate(chat):
        if turn["role"] == "assistant":
            asked, answered = _written(chat[:i], tokenizer, open_turn=True), _written(chat[: i + 1], tokenizer, False)
            if not (text.startswith(asked) and text.startswith(answered)):
                raise ValueError(
                    f"the tokenizer's template writes turns 0 to {i} in another way when turns follow, as templates "
                    "that drop earlier thoughts do: split the chat into one example for each answer"
                )
            borders += [(len(asked), 0), (len(answered), 1)]
    for border, counts in [*borders, (len(text), 0)]:
        part = tokenizer.encode(text[done:border], add_special_tokens=False) if border > done else []
        ids += part
        mask += [counts] * len(part)
        done = border
    return ids, mask


def _written(chat: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, open_turn: bool) -> str:
    return str(tokenizer.apply_chat_template(chat, add_generation_prompt=open_turn, tokenize=False)) if chat else ""
