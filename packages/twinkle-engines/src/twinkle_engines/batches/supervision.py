"""Supervision: texts and chats for supervised tuning, where the answers count and the prompts do not."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.chats import Template, as_chat, template_of
from twinkle_engines.batches.ends import ends_of
from twinkle_engines.batches.given import rows_of, whole
from twinkle_engines.batches.prompts import text_ids
from twinkle_engines.batches.rollouts import Rollouts
from twinkle_engines.batches.turns import cut_at, encoded, turns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.chats import Chat

    _Tokens = tuple[list[int], list[int]]


def supervised(
    rows: Sequence[Any],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
    *,
    tools: Sequence[Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Rollouts:
    """Rollouts of examples, whose mask has the tokens of the answers; a `collate_fn` of a DataLoader with `partial`.

    The forms are those of TRL's datasets ("Dataset formats and types" in its documentation), from Python, Arrow,
    Parquet or numpy. The template's text is encoded once. What counts is what the template has between
    {% generation %} marks; without marks it is found in the text: what follows the text that asks for a turn, thoughts
    included, up to what ends the turn.

    Args:
        rows: Each is a chat, a list of messages with "role" and "content"; a mapping with a chat as "messages"; or a
            mapping with "prompt" and "completion", both texts or both chats. In a chat the turns of the assistant
            count, those of the completion alone where there is one, with what ends them: an end token, or the next
            role's marker, which is written behind the last answer too. A turn with the key "weight" of 0 does not
            count. A completion that is a text ends with the tokenizer's end token. "tools" and "chat_template_kwargs"
            of a row go first before those given here.
        tokenizer: With a template, for chats.
        max_length: Tokens of a sequence at most; what is beyond is cut off. None for all.
        tools: Tools for the template: JSON schemas, or functions.
        chat_template_kwargs: Variables of the template, such as `enable_thinking`.

    Raises:
        TypeError: A row or an argument is of no such form.
        ValueError: `max_length` is below 1, the template refuses a chat, or there is no telling which tokens of the
            whole chat are the answer's.
    """
    template = template_of(tokenizer, tools, chat_template_kwargs)
    if template is None:
        raise TypeError("supervised needs a tokenizer, got None: use AutoTokenizer.from_pretrained(...)")
    max_length = None if max_length is None else whole("max_length", max_length, 1)
    pairs = [_tokens(row, template.of(row)) for row in rows_of("rows", rows)]
    return Rollouts([ids[:max_length] for ids, _ in pairs], [mask[:max_length] for _, mask in pairs])


def supervised_packs(
    packs: Sequence[Sequence[Any]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
    *,
    tools: Sequence[Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[Rollouts]:
    """The same for a loader that packs: rollouts of each pack, which a model computes at once, without padding.

    The loader's `lengths` are those of `supervised(rows, tokenizer, max_length)`.

    Args:
        packs: Each a list of rows.
        tokenizer: As for `supervised`.
        max_length: As for `supervised`.
        tools: As for `supervised`.
        chat_template_kwargs: As for `supervised`.
    """
    options: dict[str, Any] = {"tools": tools, "chat_template_kwargs": chat_template_kwargs}
    return [supervised(rows, tokenizer, max_length, **options) for rows in packs]


def _tokens(row: Any, template: Template) -> _Tokens:
    """The ids of one example, and 1 at each that counts."""
    given = row if isinstance(row, Mapping) else {"messages": row}
    if given.get("functions") is not None:
        raise TypeError('an example has "functions", OpenAI\'s older form: use "tools", and "tool_calls" in messages')
    chat = as_chat(given.get("messages"))
    if chat is not None:
        return _chat(chat, template)
    prompt, completion = given.get("prompt"), given.get("completion")
    asked = as_chat(prompt)
    if asked is not None:
        said = _message(completion) if isinstance(completion, str) else as_chat(completion)
        if said is not None:
            return _chat([*asked, *said], template, len(asked))
    if isinstance(prompt, str) and isinstance(completion, str):
        return _pair(str(prompt), str(completion), template.tokenizer)
    raise TypeError(
        'an example is a chat, a mapping with "messages", or one with "prompt" and "completion", texts or chats, got '
        f"{type(row).__name__} {row!r:.60}"
    )


_ASKING = ("system", "developer", "user", "tool", "function", "ipython", "observation", "environment", "documents")
"""Roles in which the assistant is asked, or told something."""


def _message(text: str) -> Chat:
    return [{"role": "assistant", "content": text}]


def _pair(prompt: str, completion: str, tokenizer: PreTrainedTokenizerBase) -> _Tokens:
    """A prompt and its completion, encoded as one text where the prompt's tokens stay what a sampler is given."""
    ids = text_ids(prompt, tokenizer)
    whole = ids + list(tokenizer.encode(completion, add_special_tokens=False))
    with suppress(Exception):  # a tokenizer of whole words may not know the one at the border
        together = text_ids(prompt + completion, tokenizer)
        unknown: Any = tokenizer.unk_token_id
        if together[: len(ids)] == ids and together.count(unknown) <= whole.count(unknown):
            whole = together
    ends = ends_of(tokenizer)
    if ends and whole[-1:] != ends[:1]:
        whole = [*whole, ends[0]]
    return whole, [0] * len(ids) + [1] * (len(whole) - len(ids))


def _chat(chat: Chat, template: Template, asked: int = 0) -> _Tokens:
    """The tokens of a chat, whose answers count from message `asked` on.

    Raises:
        ValueError: There are turns of somebody else in the place of the assistant's, such as of "model".
    """
    roles = [str(turn["role"]) for turn in chat]
    others = sorted({role for role in roles if role not in _ASKING})
    if others and "assistant" not in roles:
        raise ValueError(
            f"a chat has no turn of the assistant, but of {', '.join(others)}, and nobody's answer would count: use "
            'the role "assistant" for what the model writes'
        )
    weights = [_weight(turn) for turn in chat]
    plain = template.fitted([{key: value for key, value in turn.items() if key != "weight"} for turn in chat])
    template.report_left_out(plain, Template.text)
    counts = [weight and i >= asked for i, weight in enumerate(weights)]
    left_out = any(turn["role"] == "assistant" and not one for turn, one in zip(plain, counts, strict=True))
    marked = template.marked(plain)
    if marked is not None and not left_out:
        return marked
    whole = encoded(template.text(plain), template.tokenizer)
    turns = turns_of(plain, template, whole)
    if marked is not None:
        hidden = whole.counted([(one.start, one.stop) for i, one in turns.items() if not counts[i]])
        return whole.ids, [own * (1 - out) for own, out in zip(marked[1], hidden, strict=True)]
    whole = cut_at(whole, [one.start for one in turns.values()], template.tokenizer)
    mask = whole.counted([(one.start, one.stop) for i, one in turns.items() if counts[i]])
    closing = [(one.closing, int(counts[i])) for i, one in turns.items() if one.closing is not None]
    return whole.ids + [token for token, _ in closing], mask + [one for _, one in closing]


def _weight(turn: dict[str, Any]) -> bool:
    """Whether a turn counts, as OpenAI's "weight" says.

    Raises:
        ValueError: It is neither 0 nor 1.
    """
    weight = turn.get("weight", 1)
    if weight not in (0, 1):
        raise ValueError(f'the "weight" of a message is 0 or 1, got {weight!r}')
    return bool(weight)
