"""Turns: where the assistant's turns, with what ends them, stand in the text that a template writes of a chat."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.chats import Chat, Template

_STAND_IN = "\u2402said\u2403"
"""A text that no chat has: written in a turn's place, it shows where the turn lies in the text."""

_ASK = {"role": "user", "content": "?"}


class Encoded(NamedTuple):
    """The text of a chat, encoded once.

    Attributes:
        text: The text.
        ids: Its tokens.
        spans: The part of the text that each token stands for, as (start, end).
    """

    text: str
    ids: list[int]
    spans: list[tuple[int, int]]

    def before(self, place: int) -> int:
        """The last place at or before this one that lies in no token."""
        return next((start for start, end in self.spans if start < place < end), place)

    def counted(self, parts: Iterable[tuple[int, int]]) -> list[int]:
        """1 at each token that has a part of its own in one of these parts of the text, else 0."""
        mask = [0] * len(self.ids)
        for begin, end in parts:
            for i, (start, stop) in enumerate(self.spans):
                mask[i] |= start < end and stop > begin
        return mask


def encoded(text: str, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    """A text with its tokens and the part that each stands for.

    Raises:
        ValueError: The tokenizer is slow, and its tokens do not add up to the text.
    """
    if tokenizer.is_fast:
        made: Any = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return Encoded(text, list(made["input_ids"]), [(int(start), int(end)) for start, end in made["offset_mapping"]])
    ids = list(tokenizer.encode(text, add_special_tokens=False))
    spans, done = [], 0
    for i in range(len(ids)):
        upto = len(tokenizer.decode(ids[: i + 1]))
        spans.append((done, upto))
        done = upto
    if tokenizer.decode(ids) != text:
        raise ValueError(
            "a slow tokenizer does not say which part of a text a token stands for, and its tokens do not give the "
            "text back: use a fast tokenizer, or a template with {% generation %} marks"
        )
    return Encoded(text, ids, spans)


class Turn(NamedTuple):
    """A turn of the assistant in a text: what the model writes there, with its end.

    Attributes:
        start: Where it begins, behind what opens the turn.
        stop: Where it ends.
        closing: The token that ends it, where the text ends without one; else None.
    """

    start: int
    stop: int
    closing: int | None = None


def cut_at(whole: Encoded, places: Iterable[int], tokenizer: PreTrainedTokenizerBase) -> Encoded:
    """The text with its tokens cut where turns begin, as where a sampler is given the text before.

    A tokenizer that writes a space before each text cannot be cut there: its tokens stay as they are.
    """
    cuts = sorted({place for place in places if whole.before(place) != place})
    if not cuts:
        return whole
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    for begin, end in zip([0, *cuts], [*cuts, len(whole.text)], strict=True):
        part = encoded(whole.text[begin:end], tokenizer)
        ids += part.ids
        spans += [(begin + start, begin + stop) for start, stop in part.spans]
    same = tokenizer.decode(ids) == tokenizer.decode(whole.ids)
    return Encoded(whole.text, ids, spans) if same else whole


def turns_of(chat: Chat, template: Template, whole: Encoded) -> dict[int, Turn]:
    """The assistant's turns in the text of a chat, by the number of their message.

    Args:
        chat: The chat.
        template: What has written it.
        whole: The text.

    Raises:
        ValueError: There is no telling where a turn begins or ends.
    """
    reader = _Reader(chat, template, whole)
    return {i: reader.turn(i) for i, turn in enumerate(chat) if turn["role"] == "assistant"}


class _Reader:
    """Reads turns off texts of the same chat with something else in a turn's place."""

    def __init__(self, chat: Chat, template: Template, whole: Encoded) -> None:
        self._chat, self._template, self._whole = chat, template, whole
        self._special = special_ids(template.tokenizer)

    def turn(self, i: int) -> Turn:
        """The turn of message i."""
        bodies = self._bodies(i)
        start = self._start(i, max(begin for begin, _ in bodies))
        return Turn(start, *self._stop(i, bodies[0][1], min(end for _, end in bodies)))

    def _bodies(self, i: int) -> list[tuple[int, int]]:
        """Where what message i says begins and ends: there the text changes with it, and with nothing behind it.

        In place of a call of a tool a text may change what is before and behind the turn too: the second body is that
        of a turn with another call.
        """
        text = self._whole.text
        limit = self._begin(i + 1)
        found = []
        for other in self._others(i):
            before = _common(text, other)
            end = len(text) - _common(text[before:][::-1], other[before:][::-1])
            if limit is None or end <= limit:
                found.append((before, end))
        if not found:
            raise _unknown(i, "it is left out there, or no other text may stand in its place")
        return found[: 2 if self._chat[i].get("tool_calls") else 1]

    def _begin(self, i: int) -> int | None:
        """Where what message i says begins; None where that cannot be seen, or there is no such message."""
        other = next(self._others(i), None) if i < len(self._chat) else None
        return None if other is None else _common(self._whole.text, other)

    def _others(self, i: int) -> Iterator[str]:
        """The text with something else in the place of message i, as far as the template writes that."""
        turn = self._chat[i]
        calls = [{**call, "function": _other_call(call.get("function"))} for call in turn.get("tool_calls") or []]
        for other in (
            {"role": turn["role"], "content": _STAND_IN},
            {**turn, "content": _STAND_IN, **({"tool_calls": calls} if calls else {})},
            {**turn, "content": _STAND_IN},
        ):
            text = _tried(self._template, [*self._chat[:i], other, *self._chat[i + 1 :]], asks=False)
            if text is not None and _STAND_IN in text:
                yield text

    def _start(self, i: int, begin: int) -> int:
        """Where the model goes on: behind the text that asks for the turn, or what of it stands here."""
        text = self._whole.text
        asked = _tried(self._template, self._chat[:i], asks=True)
        if asked is not None and text.startswith(asked) and len(asked) <= begin:
            return len(asked)
        floor = (self._begin(i - 1) or 0) if i else 0
        for opening in self._openings():
            place = text.rfind(opening, floor, max(begin, floor))
            if place >= 0:
                return place + len(opening)
        raise _unknown(i, "what opens it is not what the template opens a turn with")

    def _openings(self) -> list[str]:
        """The text that the template writes behind a chat to open a turn of the assistant, the longest first.

        A text may have the beginning of it alone: of a mark of thoughts behind the role, for one.
        """
        found = []
        first = self._chat[0]
        for chat in ([_ASK], [first, _ASK] if first["role"] == "system" else []):
            closed, opened = (_tried(self._template, chat, asks=asks) for asks in (False, True))
            if closed is None or opened is None or not opened.startswith(closed):
                continue
            opening = encoded(opened[len(closed) :], self._template.tokenizer)
            pairs = zip(opening.ids, opening.spans, strict=True)
            cuts = [span[0] for token, span in pairs if token in self._special and span[0]]
            found += [opening.text[:cut] for cut in [len(opening.text), *reversed(cuts)]]
        found += [one.lstrip() for one in found]  # the turn before may end with a line or without
        return sorted({one for one in found if one.strip()}, key=len, reverse=True)

    @cached_property
    def _always_opens(self) -> bool:
        """Whether the template opens a turn of the assistant behind every chat, asked for or not."""
        closed, opened = (_tried(self._template, [_ASK], asks=asks) for asks in (False, True))
        answered = [_ASK, {"role": "assistant", "content": _STAND_IN}]
        said, more = (_tried(self._template, chat, asks=False) for chat in (answered, [*answered, _ASK]))
        if closed is None or said is None or more is None:
            return False
        return closed == opened and said.startswith(closed) and not more.startswith(said)

    def _stop(self, i: int, end: int, surely: int) -> tuple[int, int | None]:
        """Where the turn ends, with the token that closes it; or the token that would, at the end of the text.

        Args:
            i: The number of the message.
            end: Where what it says ends, or later.
            surely: What it says goes on to here at least.
        """
        text, last = self._whole.text, i == len(self._chat) - 1
        if last and not self._always_opens:
            return (len(text), None) if text[end:].strip() else (len(text), self._closing(i))
        answered = _tried(self._template, [*self._chat, _ASK] if last else self._chat[: i + 1], asks=False)
        shared = end if answered is None else self._whole.before(_common(text, answered))
        if text[end:shared].strip() or (surely < shared < end and self._ends_with_special(shared)):
            return self._before_header(min(end, shared), shared), None
        stop = self._after_special(self._whole, end)
        if stop is not None:
            return stop, None
        if "\n" in text[end:shared]:
            return shared, None  # a line's end closes the turn
        raise _unknown(i, "no token behind it ends it")

    def _ends_with_special(self, place: int) -> bool:
        """Whether the token that ends at a place is special."""
        return any(stop == place and token in self._special for token, (_, stop) in self._pairs(self._whole))

    def _before_header(self, end: int, stop: int) -> int:
        """Where a turn's end ends, without the header that the template always opens behind it."""
        if not self._always_opens:
            return stop
        bos = self._template.tokenizer.bos_token_id
        first = next((token for token in self._whole.ids if token in self._special and token != bos), None)
        places = [
            (start, token)
            for token, (start, to) in self._pairs(self._whole)
            if to > end and to <= stop and token in self._special
        ]
        return next((start for start, token in places[1:] if token == first), stop)

    @staticmethod
    def _pairs(whole: Encoded) -> Iterator[tuple[int, tuple[int, int]]]:
        return zip(whole.ids, whole.spans, strict=True)

    def _after_special(self, whole: Encoded, end: int) -> int | None:
        """Where the special token ends that stands next behind a place, with white space before it at most."""
        for token, (start, stop) in self._pairs(whole):
            if start < end or stop == start:
                continue
            if token in self._special:
                return stop
            if whole.text[start:stop].strip():
                return None
        return None

    def _closing(self, i: int) -> int | None:
        """The token that closes the last turn where more turns follow; else the tokenizer's end."""
        longer = _tried(self._template, [*self._chat, _ASK], asks=False)
        text = self._whole.text.rstrip()
        if longer is not None and longer.startswith(text):
            made = encoded(longer, self._template.tokenizer)
            stop = self._after_special(made, len(text))
            if stop is not None:
                return next(token for token, span in zip(made.ids, made.spans, strict=True) if span[1] == stop)
        if "\n" in self._whole.text[len(text) :]:
            return None  # a line's end closes the turn
        eos: Any = self._template.tokenizer.eos_token_id
        if eos is None:
            raise _unknown(i, "nothing ends it, and the tokenizer has no end token")
        return int(eos)


def _other_call(function: Any) -> Any:
    """A call of the same tool with other arguments."""
    if not isinstance(function, dict):
        return function
    arguments: Any = {_STAND_IN: _STAND_IN}
    return {**function, "arguments": json.dumps(arguments) if isinstance(function.get("arguments"), str) else arguments}


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that no text is encoded to by chance: the special ones, and all that were added."""
    return {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}


def _tried(template: Template, chat: Sequence[dict[str, Any]], *, asks: bool) -> str | None:
    """The text of a chat; None where the template refuses it."""
    if not chat:
        return None
    try:
        return template.text(list(chat), asks=asks)
    except ValueError:
        return None


def _common(one: str, other: str) -> int:
    """The length of what two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _unknown(i: int, why: str) -> ValueError:
    return ValueError(
        f"the tokenizer's template writes turns 0 to {i} in another way when turns follow, so that there is no telling "
        f"which tokens are the answer: {why}. Use a template with {{% generation %}} marks, or split the chat into one "
        "example for each answer"
    )
