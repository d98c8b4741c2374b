"""Chats and prompts as tokens: rows in plain Python, without what a container added, and as a tokenizer writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Chat = list[dict[str, Any]]
"""Messages with "role", "content", and what else a template reads."""


def rows_of(name: str, given: Any) -> list[Any]:
    """The rows that a call is given, in a list.

    Raises:
        TypeError: It is one text or one chat in place of a list of them, or columns.
    """
    is_table = isinstance(given, Mapping) or any(hasattr(given, one) for one in ("column_names", "select_dtypes"))
    rows = [] if isinstance(given, str | Mapping) else list(given)
    of_mappings = bool(rows) and all(isinstance(row, Mapping) for row in rows)
    is_chat = of_mappings and all("role" in row and "prompt" not in row for row in rows)
    if isinstance(given, str) or is_chat or (is_table and not of_mappings):
        raise TypeError(
            f"{name} is a list of rows, got {'columns' if is_table else 'one of them'}, {given!r:.60}: use [row, ...]"
        )
    return rows


def as_plain(value: Any) -> Any:
    """The value in lists, dicts and scalars of Python: arrays, tuples and scalars of other libraries as these."""
    if isinstance(value, Mapping):
        return {str(key): as_plain(one) for key, one in value.items()}
    if hasattr(value, "as_py"):  # pyarrow's scalars
        return as_plain(value.as_py())
    if hasattr(value, "tolist"):  # arrays and scalars of numpy, tensors
        value = value.tolist()
    return [as_plain(one) for one in value] if isinstance(value, list | tuple) else value


def as_chat(value: Any) -> Chat | None:
    """The value as a chat in plain Python; None for something else.

    Arrow gives each struct the keys of all, filled with None: they are taken out. In a message None is no key for
    Transformers either; further down it is one, unless the messages show that they went through Arrow.
    """
    if isinstance(value, str | bytes | Mapping) or not (isinstance(value, Sequence) or hasattr(value, "tolist")):
        return None
    if getattr(value, "shape", None) == () or not len(value):
        return None
    if not all(isinstance(turn, Mapping) and "role" in turn for turn in value):
        return None
    chat = [as_plain(turn) for turn in value]
    is_filled = len({frozenset(turn) for turn in chat}) == 1 or any(None in turn.values() for turn in chat)
    return [without_none(turn) for turn in chat] if is_filled else chat


def without_none(value: Any) -> Any:
    """The value without the keys that are None, or NaN, as pandas has it for a missing number, at any depth."""
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None and one == one}
    return [without_none(one) for one in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Template:
    """A tokenizer's template with what it is given in addition to a chat.

    Attributes:
        tokenizer: With the template.
        tools: JSON schemas, or functions that Transformers makes them of; None for none.
        options: Further variables of the template, such as `enable_thinking`.
    """

    tokenizer: PreTrainedTokenizerBase
    tools: Sequence[Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def of(self, row: Any) -> Template:
        """The template with a row's own "tools" and "chat_template_kwargs", which go first; each may be a JSON text."""
        if not isinstance(row, Mapping):
            return self
        tools, options = as_tools(row.get("tools")), as_options(row.get("chat_template_kwargs"))
        return Template(self.tokenizer, tools or self.tools, {**self.options, **options})

    def text(self, chat: Chat, *, asks: bool = False, continues: str | None = None) -> str:
        """The text of a chat.

        Args:
            chat: At least one message.
            asks: Open a turn of the assistant behind it.
            continues: The key of the last message that is left open, such as "content".

        Raises:
            ValueError: The tokenizer has no template, or the template refuses the chat.
        """
        given: dict[str, Any] = {**self.options, "add_generation_prompt": asks, "tokenize": False}
        if continues is not None:
            given["continue_final_message"] = True if continues == "content" else continues
        try:
            return str(self.tokenizer.apply_chat_template(chat, tools=_or_none(self.tools), **given))
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"the tokenizer's template refuses the chat {chat!r:.200}: {error}") from error

    def fitted(self, chat: Chat) -> Chat:
        """The chat with objects as arguments of calls, which may be JSON texts, where the template writes objects.

        Raises:
            ValueError: The template refuses the chat, or writes content as Python's list or mapping.
        """
        parts = [turn["content"] for turn in chat if isinstance(turn.get("content"), list | dict)]
        objects = [with_objects(turn) for turn in chat]
        if objects == chat and not parts:
            return chat
        try:
            text = self.text(objects)
        except ValueError:  # of a template that joins texts
            objects, text = chat, self.text(chat)
        if written := [one for one in parts if str(one) in text]:
            raise ValueError(
                f"the tokenizer's template writes the content {written[0]!r:.80} as Python has it; use a text"
            )
        calls = [call.get("function", call) for turn in objects for call in turn.get("tool_calls") or ()]
        wants_texts = any(isinstance(a := one.get("arguments"), dict) and a and str(a) in text for one in calls)
        return chat if wants_texts else objects

    def marked(self, chat: Chat) -> tuple[list[int], list[int]] | None:
        """Ids of a chat and 1 at those within {% generation %} marks; None for a template without marks."""
        template = self.tokenizer.get_chat_template(tools=_or_none(self.tools))
        if not re.search(r"\{%-?\s*generation\s*-?%\}", template) or not self.tokenizer.is_fast:
            return None
        given: dict[str, Any] = {**self.options, "return_dict": True, "return_assistant_tokens_mask": True}
        made: Any = self.tokenizer.apply_chat_template(chat, tools=_or_none(self.tools), **given)
        return list(made["input_ids"]), list(made["assistant_masks"])

    def rendered(self, chat: Chat, asked: int) -> tuple[list[int], list[int]] | None:
        """Ids of a chat, and 1 at what the model writes from message `asked` on, by renderers; None where it knows not.

        It knows models by the name of their tokenizer on the hub. Ids have to be those of the template; where a turn
        ends by the next role's marker the chat's last turn gets the model's own end.
        """
        options = json.dumps(self.options, sort_keys=True, default=str)
        renderer = _renderer(self.tokenizer, self.tokenizer.name_or_path, options)
        if renderer is None:
            return None
        made = renderer.render(chat, tools=_or_none(self.tools))
        ids, counts = [int(one) for one in made.token_ids], [bool(one) for one in made.sampled_mask]
        expected: Any = self.tokenizer(self.text(chat), add_special_tokens=False)
        if ids != list(expected["input_ids"]) or len(counts) != len(ids):
            return None
        places = [int(one) for one in made.message_indices]
        mask = [int(c and i >= asked and chat[i]["role"] == "assistant") for c, i in zip(counts, places, strict=True)]
        ends = [int(one) for one in renderer.get_stop_token_ids()]
        last = max((i for i, one in enumerate(mask) if one), default=None)
        if chat[-1]["role"] == "assistant" and len(chat) > asked and (last is None or ids[last] not in ends):
            return [*ids, ends[0]], [*mask, 1]
        return ids, mask


@lru_cache(maxsize=4)
def _renderer(tokenizer: PreTrainedTokenizerBase, name: str, options: str) -> Any:
    """The renderer of a tokenizer's model; None where renderers is missing, or knows neither its name nor an option."""
    if find_spec("renderers") is None:
        return None
    from renderers.base import MODEL_RENDERER_MAP, create_renderer

    if name not in MODEL_RENDERER_MAP:
        return None
    try:
        return create_renderer(tokenizer, chat_template_kwargs=json.loads(options) or None)
    except ValueError:
        return None


def with_objects(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn whose calls have objects as arguments, where these are JSON texts of such."""
    calls = []
    for call in turn.get("tool_calls") or ():
        function = dict(call.get("function", call))
        with suppress(KeyError, TypeError, ValueError):  # arguments that are no JSON text stay as they are
            found = json.loads(function["arguments"])
            function["arguments"] = found if isinstance(found, dict) else function["arguments"]
        calls.append({**call, "function": function} if "function" in call else function)
    return {**turn, "tool_calls": calls} if calls else turn


def template_of(
    tokenizer: PreTrainedTokenizerBase | None, tools: Any, options: Mapping[str, Any] | None
) -> Template | None:
    """The template of a tokenizer with the options of a sampler or of `supervised`; None without a tokenizer."""
    return None if tokenizer is None else Template(tokenizer, as_tools(tools), as_options(options))


def as_tools(tools: Any) -> list[Any] | None:
    """Tools of a row or an option: a list, or the text of one as JSON; None for none."""
    plain = as_plain(json.loads(tools) if isinstance(tools, str) else tools)
    kept = [without_none(json.loads(one) if isinstance(one, str) else one) for one in plain or [] if one is not None]
    return kept or None


def as_options(options: Any) -> dict[str, Any]:
    """Variables of a template: a mapping, or the text of one as JSON."""
    plain = as_plain(json.loads(options) if isinstance(options, str) else options) or {}
    return {name: value for name, value in plain.items() if value is not None}


def _or_none(tools: Sequence[Any] | None) -> list[Any] | None:
    return list(tools) if tools else None


def ends_of(tokenizer: PreTrainedTokenizerBase | None, *given: Any) -> list[int]:
    """The tokens that end an answer: those that are given, then the tokenizer's end, each once."""
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
        ValueError: One has no tokens, or needs a tokenizer where there is none; or a mapping has no "prompt".
    """
    given = zip(split_columns(rows)[0], rows, strict=True)
    return [to_ids(prompt, None if template is None else template.of(row)) for prompt, row in given]


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
    thoughts = next((name for name in ("reasoning_content", "reasoning", "thinking") if last.get(name)), None)
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
    return bare  # what is added changes how the text itself is encoded
