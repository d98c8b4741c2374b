"""Supervised rows: texts, chats and pairs of answers as rollouts, where the answers count and the prompts do not.

Invariant: what counts of a chat is what the model writes, with what ends it, or there is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.chats import as_chat, ends_of, rows_of, template_of, text_ids
from twinkle_engines.batches.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.chats import Chat, Template

    _Tokens = tuple[list[int], list[int]]
    _Span = tuple[int, int]

_ASK = {"role": "user", "content": "?"}


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
    Parquet or numpy. What counts of a chat is what the template has between {% generation %} marks; without marks what
    the package renderers says, where it is installed and knows the tokenizer's model; else what the template adds to
    the text that asks for a turn, as long as that text is how the chat begins, whatever follows, and the turn ends with
    a special token or a line. The chat's last turn may end by another token.

    Args:
        rows: Each is a chat, a list of messages with "role" and "content"; a mapping with a chat as "messages"; a
            mapping with "prompt" and "completion", both texts or both chats; or a mapping with a "text", all of which
            counts. In a chat the turns of the assistant count, those of the completion alone where there is one, with
            what ends them. A text ends with the tokenizer's end token. "tools" and "chat_template_kwargs" of a row go
            first before those given here.
        tokenizer: With a template, for chats.
        max_length: Tokens of a sequence at most; what is beyond is cut off. None for all.
        tools: Tools for the template: JSON schemas, or functions.
        chat_template_kwargs: Variables of the template, such as `enable_thinking`.

    Raises:
        TypeError: A row is of no such form.
        ValueError: The template refuses a chat, or writes a turn in another way when others follow, so that there is no
            telling which tokens are the answer's.
    """
    template: Any = template_of(tokenizer, tools, chat_template_kwargs)
    pairs = [tokens_of(row, template.of(row)) for row in rows_of("rows", rows)]
    return Rollouts([ids[:max_length] for ids, _ in pairs], [mask[:max_length] for _, mask in pairs])


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


def tokens_of(row: Any, template: Template) -> _Tokens:
    """The ids of one example, and 1 at each that counts."""
    given = row if isinstance(row, Mapping) else {"messages": row}
    chat = as_chat(given.get("messages"))
    if chat is not None:
        return _chat(chat, template)
    prompt, completion, text = (given.get(name) for name in ("prompt", "completion", "text"))
    asked = as_chat(prompt)
    if asked is not None:
        is_text = isinstance(completion, str)
        said = [{"role": "assistant", "content": completion}] if is_text else as_chat(completion)
        if said is not None:
            return _chat([*asked, *said], template, len(asked))
    if isinstance(text, str) and completion is None:
        prompt, completion = "", text
    if isinstance(prompt, str) and isinstance(completion, str):
        return _pair(prompt, completion, template.tokenizer)
    raise TypeError(
        'an example is a chat, a mapping with "messages", with "prompt" and "completion", texts or chats, or with '
        f'"text", got {type(row).__name__} {row!r:.60}'
    )


def _pair(prompt: str, completion: str, tokenizer: PreTrainedTokenizerBase) -> _Tokens:
    """A prompt and its completion, encoded as one text where the prompt's tokens stay what a sampler is given."""
    ids = text_ids(prompt, tokenizer) if prompt else []
    whole = text_ids(prompt + completion, tokenizer)
    if whole[: len(ids)] != ids:
        whole = ids + list(tokenizer.encode(completion, add_special_tokens=False))
    ends = ends_of(tokenizer)
    if ends and whole[-1:] != ends[:1]:
        whole = [*whole, ends[0]]
    return whole, [0] * len(ids) + [1] * (len(whole) - len(ids))


def _chat(chat: Chat, template: Template, asked: int = 0) -> _Tokens:
    """The tokens of a chat, whose answers count from message `asked` on.

    Raises:
        ValueError: The template writes turns in another way when others follow.
    """
    roles = {str(turn["role"]) for turn in chat}
    if "assistant" not in roles and {role.lower() for role in roles} & {"assistant", "model", "gpt", "bot", "ai"}:
        raise ValueError(f"a chat has turns of {sorted(roles)}: use the role 'assistant' for what the model writes")
    chat = template.fitted(chat)
    marked = template.marked(chat)
    if marked is not None and not asked:
        return marked
    if marked is None and (rendered := template.rendered(chat, asked)) is not None:
        return rendered
    text = template.text(chat)
    ids, spans = _encoded(text, (), template.tokenizer)
    if marked is not None:
        start = _end_of_prefix(text, template.text(chat[:asked], asks=True), asked)
        return marked[0], [one * (begin >= start) for one, (begin, _) in zip(marked[1], spans, strict=True)]
    numbers = [i for i, turn in enumerate(chat) if turn["role"] == "assistant" and i >= asked]
    turns = [_turn(i, chat, text, template) for i in numbers]
    cuts = sorted({turn for turn, _ in turns if any(start < turn < stop for start, stop in spans)})
    decode = template.tokenizer.decode
    # cut where turns begin, as a sampler is given the text before; not where that writes a space before each text
    if cuts and decode((cut := _encoded(text, cuts, template.tokenizer))[0]) == decode(ids):
        ids, spans = cut
    return ids, [int(any(start < stop and stop > a and start < b for a, b in turns)) for start, stop in spans]


def _turn(i: int, chat: Chat, text: str, template: Template) -> tuple[int, int]:
    """Where turn i of the assistant begins and ends in the text of the chat."""
    if i:
        start = _end_of_prefix(text, template.text(chat[:i], asks=True), i)
    else:  # nothing asks for it: what opens a turn stands behind what opens a chat
        opening = template.text([_ASK], asks=True)[len(template.text([_ASK])) :]
        start = text.find(opening) + len(opening)
        if not opening or not text[start:].startswith(str(chat[0].get("content") or "").strip()):
            raise _unknown(i)
    tokenizer = template.tokenizer
    special = tuple({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()} - {""})
    said, asked = template.text(chat[: i + 1]), template.text([*chat[: i + 1], _ASK])
    stop, other = (_end_of_turn(one, said, special, template) for one in (text, asked))
    if stop is None or other is None or (text != said and text[:stop] != asked[:other]):
        raise _unknown(i)  # or another question that follows would end it in another way
    if stop <= start or not text[:stop].endswith(("\n", *special)):
        raise _unknown(i)
    return start, stop


def _end_of_turn(text: str, said: str, special: tuple[str, ...], template: Template) -> int | None:
    """Where the last turn of `said` ends in a text that goes on; None where the text writes it in another way.

    The last turn of a chat may end by another special token, or by one more, than it has where others follow.
    """
    if text.startswith(said):
        return len(said)
    content = said.rstrip()
    while end := max((one for one in special if content.endswith(one)), key=len, default=""):
        content = content[: -len(end)].rstrip()
    rest = text[len(content) :].lstrip() if text.startswith(content) else ""
    end = max((one for one in special if rest.startswith(one)), key=len, default="")
    opening = template.text([_ASK]).rpartition(_ASK["content"])[0]
    if not end or end in opening:  # what opens a question ends no answer
        return None
    after = rest[len(end) :]
    return len(text) - len(after) + after.startswith("\n")


def _end_of_prefix(text: str, prefix: str, i: int) -> int:
    if not text.startswith(prefix):
        raise _unknown(i)
    return len(prefix)


def _unknown(i: int) -> ValueError:
    return ValueError(
        f"the tokenizer's template writes turns 0 to {i} in another way when turns follow, or ends them with nothing: "
        "there is no telling which tokens are the answer: use a template with {% generation %} marks "
        "(trl.get_training_chat_template has some), or rows of prompt and completion as texts"
    )


def _encoded(text: str, cuts: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[_Span]]:
    """Ids of a text that is cut at some places, and the part of the text that each stands for.

    Raises:
        ValueError: The tokenizer is slow: it does not say which part of a text a token stands for.
    """
    if not tokenizer.is_fast:
        raise ValueError("a slow tokenizer does not say which part of a text a token stands for: use a fast one")
    ids: list[int] = []
    spans: list[_Span] = []
    for begin, end in pairwise([0, *cuts, len(text)]):
        made: Any = tokenizer(text[begin:end], add_special_tokens=False, return_offsets_mapping=True)
        ids += made["input_ids"]
        spans += [(begin + int(start), begin + int(stop)) for start, stop in made["offset_mapping"]]
    return ids, spans
