"""Prompts as token ids: texts, chats, ids, or mappings with one of these and further columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.chats import Template, as_chat, as_plain, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.chats import Chat

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


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


def split_columns(prompts: Sequence[Any]) -> tuple[list[Any], dict[str, list[Any]]]:
    """The prompts themselves, and the further columns of rows that are mappings with a "prompt".

    Rows of several sources may have other columns: a row has None where it has no such column.

    Raises:
        TypeError: They are no list of rows.
        ValueError: A mapping has no "prompt".
    """
    rows = rows_of("prompts", prompts)
    for row in rows:
        if isinstance(row, Mapping) and "prompt" not in row:
            raise ValueError(f'a row is a prompt, or a mapping with a "prompt" and further columns; one has {[*row]}')
    names = dict.fromkeys(name for row in rows if isinstance(row, Mapping) for name in row if name != "prompt")
    columns = {str(name): [row.get(name) if isinstance(row, Mapping) else None for row in rows] for name in names}
    return [row["prompt"] if isinstance(row, Mapping) else row for row in rows], columns


def encoded_rows(rows: Sequence[Any], template: Template | None) -> list[list[int]]:
    """The token ids of the prompts of rows, each with its own "tools" and "chat_template_kwargs".

    Raises:
        TypeError: A prompt is no text, chat or ids.
        ValueError: One has no tokens, or needs a tokenizer where there is none.
    """
    return [
        to_ids(row["prompt"] if isinstance(row, Mapping) else row, None if template is None else template.of(row))
        for row in rows
    ]


def to_ids(prompt: Any, template: Template | None) -> list[int]:
    """The token ids of one prompt; a chat goes through the tokenizer's template.

    A chat that ends with a turn of the assistant is left open there, to be continued.

    Raises:
        TypeError: It is no text, chat or ids.
        ValueError: It has no tokens, or needs a tokenizer where there is none.
    """
    chat = None if isinstance(prompt, str) else as_chat(prompt)
    if chat is None and not isinstance(prompt, str):
        ids = as_plain(prompt)
        if not isinstance(ids, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
            raise TypeError(f"a prompt is a text, a chat or token ids, got {type(prompt).__name__} {prompt!r:.60}")
    elif template is None:
        raise ValueError("texts and chats need a tokenizer: use tokenizer= of the sampler, or token ids")
    elif chat is None:
        ids = text_ids(str(prompt), template.tokenizer)
    else:
        ids = list(template.tokenizer.encode(chat_text(chat, template), add_special_tokens=False))
    if not ids:
        raise ValueError(f"the prompt {prompt!r:.60} has no tokens: a model continues at least one")
    return [int(one) for one in ids]


def chat_text(chat: Chat, template: Template) -> str:
    """The text of a chat that the assistant answers, or whose last turn, its own, it continues.

    Raises:
        ValueError: The last turn is a call of a tool, or the template writes it in another way.
    """
    chat = template.fitted(chat)
    last = chat[-1]
    if last["role"] != "assistant":
        return template.text(chat, asks=True)
    if last.get("tool_calls"):
        raise ValueError(
            "the chat ends with the assistant's call of a tool, which is not continued: add the tool's message"
        )
    if last.get("content"):
        return template.text(chat, continues="content")
    thoughts = next((name for name in _THOUGHTS if last.get(name)), None)
    if thoughts is not None or len(chat) == 1:
        return template.text(chat, continues=thoughts or "content")
    return template.text(chat[:-1], asks=True)  # what is empty is no beginning


def text_ids(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of a text that is continued: as the tokenizer begins it, with one begin, and without an end behind it."""
    whole = list(tokenizer.encode(text))
    bare = list(tokenizer.encode(text, add_special_tokens=False))
    if not bare:
        return whole[:1] if whole[:1] == [tokenizer.bos_token_id] else []
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            begin = whole[:start]
            return bare if begin and bare[: len(begin)] == begin else begin + bare
    ends = ends_of(tokenizer)  # what is added changes how the text itself is encoded
    while whole and whole[-1] in ends and bare[-1:] != whole[-1:]:
        whole.pop()
    begin = whole[:1]
    return whole[1:] if begin == [tokenizer.bos_token_id] and whole[1:2] == begin else whole
