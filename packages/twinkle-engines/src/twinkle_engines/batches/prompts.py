"""Prompts as token ids: texts, chats, ids, or mappings with one of these and further columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.chats import Template, as_chat
from twinkle_engines.batches.ends import ends_of
from twinkle_engines.batches.given import plain_number, rows_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.chats import Chat


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
            raise ValueError(
                f'a row is a prompt, or a mapping with a "prompt" and further columns; one has '
                f"{', '.join(map(str, row)) or 'no key'}"
            )
    names = dict.fromkeys(name for row in rows if isinstance(row, Mapping) for name in row if name != "prompt")
    columns = {str(name): [row.get(name) if isinstance(row, Mapping) else None for row in rows] for name in names}
    return [row["prompt"] if isinstance(row, Mapping) else row for row in rows], columns


def encoded_rows(rows: Sequence[Any], template: Template | None) -> list[list[int]]:
    """The token ids of the prompts of rows, each with its own "tools" and "chat_template_kwargs".

    Raises:
        TypeError: A prompt is no text, chat or ids.
        ValueError: One has no tokens, or needs a tokenizer where there is none.
    """
    found = []
    for row in rows:
        own = template if template is None else template.of(row)
        found.append(to_ids(row["prompt"] if isinstance(row, Mapping) else row, own))
    return found


def to_ids(prompt: Any, template: Template | None) -> list[int]:
    """The token ids of one prompt; a chat goes through the tokenizer's template.

    A chat that ends with a turn of the assistant is left open there, to be continued.

    Raises:
        TypeError: It is no text, chat or ids.
        ValueError: It has no tokens, or needs a tokenizer where there is none.
    """
    ids = _given_ids(prompt)
    if ids is None:
        chat = None if isinstance(prompt, str) else as_chat(prompt)
        if not isinstance(prompt, str) and chat is None:
            raise TypeError(f"a prompt is a text, a chat or token ids, got {type(prompt).__name__} {prompt!r:.60}")
        if template is None:
            raise ValueError("texts and chats need a tokenizer: use tokenizer= of the sampler, or token ids")
        tokenizer = template.tokenizer
        if chat is None:
            ids = text_ids(str(prompt), tokenizer)
        else:
            ids = list(tokenizer.encode(chat_text(chat, template), add_special_tokens=False))
    if not ids:
        raise ValueError(f"the prompt {prompt!r:.60} has no tokens: a model continues at least one")
    return ids


def chat_text(chat: Chat, template: Template) -> str:
    """The text of a chat that the assistant answers, or whose last turn, its own, it continues.

    Raises:
        ValueError: The last turn is a call of a tool, or the template writes it in another way.
    """
    chat = template.fitted(chat)
    template.report_left_out(chat, _asked)
    return _asked(template, chat)


def _asked(template: Template, chat: Chat) -> str:
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


_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


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


def _given_ids(prompt: Any) -> list[int] | None:
    """The ids of a prompt that is ids, in a tensor, an array, or a list of any whole numbers.

    Raises:
        TypeError: A tensor or array is not of one dimension, or not of whole numbers.
    """
    if isinstance(prompt, str | bytes | Mapping) or getattr(prompt, "shape", None) == ():
        return None
    dtype = getattr(prompt, "dtype", None)
    if dtype is not None and getattr(dtype, "kind", "") != "O":
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in prompt.tolist())
        if len(prompt.shape) != 1 or not whole:
            raise TypeError(
                f"token ids are whole numbers in one dimension, got {type(prompt).__name__} of {dtype} with the shape "
                f"{tuple(prompt.shape)}"
            )
        return _within(prompt.tolist())
    if not isinstance(prompt, Sequence) and not hasattr(prompt, "tolist"):
        return None
    ids = [plain_number(one) for one in prompt]
    if all(isinstance(one, Integral) and not isinstance(one, bool) for one in ids):
        return _within(ids)
    return None


def _within(ids: list[Any]) -> list[int]:
    """The ids as Python's numbers.

    Raises:
        ValueError: One is no number of 64 bits.
    """
    found = [int(one) for one in ids]
    for extreme in (min(found, default=0), max(found, default=0)):
        if not -(2**63) <= extreme < 2**63:
            raise ValueError(f"a prompt has the token id {extreme}: use ids of the model's vocabulary")
    return found
