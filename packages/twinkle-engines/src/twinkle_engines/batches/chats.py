"""Chats as a tokenizer's template writes them: rows in plain Python, without what a container added to them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedTokenizerBase

Chat = list[dict[str, Any]]
"""Messages with "role", "content", and what else a template reads."""


def as_plain(value: Any) -> Any:
    """The value in lists, dicts and scalars of Python: arrays, tuples and scalars of other libraries as these."""
    if isinstance(value, Mapping):
        return {str(key): as_plain(one) for key, one in value.items()}
    if hasattr(value, "as_py"):  # pyarrow's scalars
        return as_plain(value.as_py())
    if hasattr(value, "tolist") and not isinstance(value, str):  # arrays and scalars of numpy, tensors
        value = value.tolist()
        return [as_plain(one) for one in value] if isinstance(value, list) else value
    if isinstance(value, list | tuple):
        return [as_plain(one) for one in value]
    return value


def as_chat(value: Any) -> Chat | None:
    """The value as a chat in plain Python; None for something else.

    Arrow gives each struct the keys of all, filled with None: they are taken out. In a message None is no key for
    Transformers either; further down it is one, unless the messages show that they went through Arrow.
    """
    if isinstance(value, str | bytes | Mapping) or not (isinstance(value, Sequence) or hasattr(value, "tolist")):
        return None
    if getattr(value, "shape", None) == () or not len(value):
        return None
    if getattr(getattr(value, "dtype", None), "kind", "O") != "O":  # an array of numbers
        return None
    if not all(isinstance(turn, Mapping) and "role" in turn for turn in value):
        return None
    chat = [as_plain(turn) for turn in value]
    is_filled = len({frozenset(turn) for turn in chat}) == 1 or any(None in turn.values() for turn in chat)
    if is_filled:
        return [without_none(turn) for turn in chat]
    return chat


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
        """The template with a row's own "tools" and "chat_template_kwargs", which go first.

        Raises:
            TypeError: One of these is of another form.
        """
        if not isinstance(row, Mapping):
            return self
        tools, options = row.get("tools"), row.get("chat_template_kwargs")
        if tools is None and options is None:
            return self
        own_tools, own_options = as_tools(tools), as_options(options)
        return Template(
            self.tokenizer, self.tools if own_tools is None else own_tools, {**self.options, **(own_options or {})}
        )

    def text(self, chat: Chat, *, asks: bool = False, continues: str | None = None) -> str:
        """The text of a chat.

        Args:
            chat: At least one message.
            asks: Open a turn of the assistant behind it.
            continues: The key of the last message that is left open, such as "content".

        Raises:
            ValueError: The tokenizer has no template, or the template refuses the chat.
        """
        given: dict[str, Any] = {"add_generation_prompt": asks, "tokenize": False, **self.options}
        if continues is not None:
            given["continue_final_message"] = True if continues == "content" else continues
        try:
            return str(self.tokenizer.apply_chat_template(chat, tools=_or_none(self.tools), **given))
        except Exception as error:
            if isinstance(error, ValueError):
                raise
            raise ValueError(f"the tokenizer's template refuses the chat {chat!r:.200}: {error}") from error

    def fitted(self, chat: Chat) -> Chat:
        """The chat in the form that the template reads, of the forms that Transformers and OpenAI have.

        Arguments of calls that are JSON texts, which a template does not write as they are, become objects; content
        that is one part with a text, which it writes as Python's list, becomes the text.

        Raises:
            ValueError: The template refuses the chat, or writes content as Python's list or mapping.
        """
        if not any(_texts_of_arguments(turn) or isinstance(turn.get("content"), list | dict) for turn in chat):
            return chat
        texts = [one for turn in chat for one in _texts_of_arguments(turn)]
        try:
            text = self.text(chat)
        except ValueError:
            if not texts:
                raise
            text = ""
        if any(one not in text or any(form in text for form in _quoted(one)) for one in texts):
            objects = [_with_objects(turn) for turn in chat]
            with suppress(ValueError):  # the template takes no objects either: the text stays
                chat, text = objects, self.text(objects)
        fitted = [_with_text(turn) if str(turn.get("content")) in text else turn for turn in chat]
        for before, turn in zip(chat, fitted, strict=True):
            content = turn.get("content")
            if turn is before and isinstance(content, list | dict) and str(content) in text:
                raise ValueError(
                    f"the tokenizer's template writes the content {content!r:.80} as Python has it: use a text"
                )
        return fitted

    def report_left_out(self, chat: Chat, write: Callable[[Template, Chat], str]) -> None:
        """Warn of a template that leaves out without a word what a model is to read: a message, a call, or the tools.

        What the assistant said may be left out, as templates do with the thoughts of earlier turns.

        Args:
            chat: A chat that the template takes.
            write: Writes a chat by a template.
        """
        text = write(self, chat)
        for i, turn in enumerate(chat):
            for what, said, other in _said(turn):
                changed = [*chat[:i], other, *chat[i + 1 :]]
                if said not in text and _is_unread(text, partial(write, self, changed)):
                    _warn_left_out(f"the {what} of messages of the role {turn['role']}")
        names = [_name_of(tool) for tool in self.tools or ()]
        bare = Template(self.tokenizer, None, self.options)
        if not all(name and name in text for name in names) and _is_unread(text, partial(write, bare, chat)):
            _warn_left_out("the tools")

    def marked(self, chat: Chat) -> tuple[list[int], list[int]] | None:
        """Ids of a chat and 1 at those within {% generation %} marks; None for a template without marks."""
        template = self.tokenizer.get_chat_template(tools=_or_none(self.tools))
        if not _has_marks(template) or not self.tokenizer.is_fast:
            return None
        given: dict[str, Any] = {"return_dict": True, "return_assistant_tokens_mask": True, **self.options}
        try:
            made: Any = self.tokenizer.apply_chat_template(chat, tools=_or_none(self.tools), **given)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"the tokenizer's template refuses the chat {chat!r:.200}: {error}") from error
        return list(made["input_ids"]), list(made["assistant_masks"])


def _warn_left_out(what: str) -> None:
    warnings.warn(
        f"the tokenizer's template leaves out {what}, so the model never reads it: use a template that writes it, or "
        "rows without it",
        stacklevel=2,
    )


def _said(turn: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The parts of a turn that a template has to write: the kind, the text, and the turn with another text there."""
    content, calls = turn.get("content"), turn.get("tool_calls")
    if turn["role"] != "assistant" and isinstance(content, str) and content.strip():
        yield "content", content.strip(), {**turn, "content": _STAND_IN}
    calls = calls if isinstance(calls, list) else []
    for i, call in enumerate(calls):
        if name := _name_of(call):
            function = {**call.get("function", call), "name": _STAND_IN}
            other = {**call, "function": function} if "function" in call else function
            yield "call", name, {**turn, "tool_calls": [*calls[:i], other, *calls[i + 1 :]]}


_STAND_IN = "another"


def _name_of(tool: Any) -> str:
    """The name of the function of a tool or a call; empty without one."""
    function = tool.get("function", tool) if isinstance(tool, dict) else tool
    name = function.get("name") if isinstance(function, dict) else getattr(function, "__name__", "")
    return name if isinstance(name, str) else ""


def _is_unread(text: str, write: Callable[[], str]) -> bool:
    """Whether a template writes the same text of something else."""
    with suppress(ValueError):  # the template refuses it, so it has read it
        return write() == text
    return False


def _texts_of_arguments(turn: dict[str, Any]) -> list[str]:
    """The arguments of a turn's calls that are JSON texts of objects."""
    functions = [call.get("function", call) for call in turn.get("tool_calls") or [] if isinstance(call, dict)]
    given = [one.get("arguments") for one in functions if isinstance(one, dict)]
    return [one for one in given if isinstance(one, str) and _object(one) is not None]


def _object(text: str) -> dict[str, Any] | None:
    """The object that a JSON text stands for; None for another text."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _quoted(text: str) -> tuple[str, str]:
    """A text as JSON has it within another."""
    return json.dumps(text), json.dumps(text, ensure_ascii=False)


def _with_objects(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn whose calls have objects as arguments."""
    if not _texts_of_arguments(turn):
        return turn
    calls = []
    for call in turn["tool_calls"]:
        function = call.get("function", call) if isinstance(call, dict) else None
        text = function.get("arguments") if isinstance(function, dict) else None
        found = _object(text) if isinstance(text, str) else None
        if found is None or function is None:
            calls.append(call)
        else:
            fresh = {**function, "arguments": found}
            calls.append({**call, "function": fresh} if "function" in call else fresh)
    return {**turn, "tool_calls": calls}


def _with_text(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn whose content is the text of its one part; another turn itself."""
    content = turn.get("content")
    part = content[0] if isinstance(content, list) and len(content) == 1 else None
    if not isinstance(part, dict) or part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
        return turn
    return {**turn, "content": part["text"]}


def template_of(
    tokenizer: PreTrainedTokenizerBase | None, tools: Sequence[Any] | None, options: Mapping[str, Any] | None
) -> Template | None:
    """The template of a tokenizer with the options of a sampler or of `supervised`; None without a tokenizer.

    Raises:
        TypeError: An option is of another form.
    """
    check_tokenizer(tokenizer)
    own, chosen = as_tools(tools), as_options(options)
    return None if tokenizer is None else Template(tokenizer, own, chosen or {})


def check_tokenizer(tokenizer: Any) -> None:
    """Raise for something else than a tokenizer, or None.

    Raises:
        TypeError: It is something else.
    """
    has_all = hasattr(tokenizer, "encode") and hasattr(tokenizer, "apply_chat_template")
    if tokenizer is not None and (isinstance(tokenizer, type) or not has_all):
        raise TypeError(
            f"tokenizer is one of Transformers, got a {type(tokenizer).__name__}: use "
            "AutoTokenizer.from_pretrained(...), or a processor's own tokenizer"
        )


def as_tools(tools: Any) -> list[Any] | None:
    """Tools of a row or an option: a list, or the text of one as JSON; None for none.

    Raises:
        TypeError: It is something else.
    """
    found = _from_json("tools", tools)
    plain = as_plain(found)
    if plain is None:
        return None
    if not isinstance(plain, list):
        raise TypeError(f"tools is a list of JSON schemas or functions, got {type(tools).__name__} {tools!r:.60}")
    kept = [without_none(_from_json("tools", tool)) for tool in plain if tool is not None]
    return kept or None


def as_options(options: Any) -> dict[str, Any] | None:
    """Variables of a template: a mapping, or the text of one as JSON; None for none.

    Raises:
        TypeError: It is something else, or names an argument that the sampler or `supervised` sets.
    """
    plain = as_plain(_from_json("chat_template_kwargs", options))
    if plain is None:
        return None
    if not isinstance(plain, dict):
        raise TypeError(f"chat_template_kwargs is a mapping, got {type(options).__name__} {options!r:.60}")
    for name in _SET & plain.keys():
        raise TypeError(f"chat_template_kwargs has {name}, which is set here; use the template's own variables")
    return {name: value for name, value in plain.items() if value is not None}


_SET = {
    "conversation",
    "tools",
    "tokenize",
    "add_generation_prompt",
    "continue_final_message",
    "return_dict",
    "return_assistant_tokens_mask",
    "return_tensors",
    "padding",
    "truncation",
    "max_length",
}


def _from_json(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise TypeError(f"{name} is a text that is no JSON: {value!r:.60}") from error


def _or_none(tools: Sequence[Any] | None) -> list[Any] | None:
    return list(tools) if tools else None


def _has_marks(template: str) -> bool:
    import re

    return re.search(r"\{\%-?\s*generation\s*-?\%\}", template) is not None
