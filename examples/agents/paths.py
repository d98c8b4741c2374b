"""Paths: the sequences of one episode, exactly as the engine saw them.

Invariant: the ids of a path are those that the engine was given and those that it wrote, in order. What it wrote is
never encoded again along a path, and a token that it wrote counts in one path alone. A turn goes on with the path whose
text begins the new one. Where a template has rewritten the history (without earlier thoughts, say), or a client goes on
from an earlier turn, a new path begins, with as many ids of an old one as their texts share.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from twinkle_engines.batches.chats import Chat, Template
    from twinkle_engines.batches.rollouts import Rollouts


class Path:
    """One sequence; an entry of each list for each token.

    Attributes:
        ids: The tokens.
        mask: 1 at tokens that the model wrote in this path.
        logprobs: Of these; 0 at others.
        versions: Of the weights that wrote the tokens; at others of those that wrote next.
        rewards: Earned at each token.
        stops: Why each turn ended.
        answer: Text of the last turn.
        is_cut: A limit has ended the episode.
        text: The text for which the ids stand.
        marks: Characters and tokens at the begin and at the end of each answer.
    """

    def __init__(self, start: Path | None = None, characters: int = 0, tokens: int = 0) -> None:
        self.text: str = "" if start is None else start.text[:characters]
        self.ids: list[int] = [] if start is None else start.ids[:tokens]
        self.mask, self.logprobs, self.rewards = [0] * tokens, [0.0] * tokens, [0.0] * tokens
        self.versions: list[int] = [] if start is None else start.versions[:tokens]
        self.stops: list[str] = []
        self.answer, self.is_cut = "", False
        self.marks = [(characters, tokens)] if tokens else []

    def add(self, ids: list[int]) -> None:
        """Take in tokens that the model reads."""
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.rewards += [0.0] * len(ids)

    def wrote(self, answer: Rollouts, text: str) -> None:
        """Take in what the model wrote.

        Args:
            answer: One sequence: the path's ids, and those that it wrote.
            text: Of these, with the end token.
        """
        count, ids = len(self.ids), answer.ids[0].tolist()
        if ids[:count] != self.ids:
            raise RuntimeError("the sampler has answered other ids than it was given")
        fresh = ids[count:]
        versions = answer.column("versions")[0].tolist()
        self.versions += versions[count : count + 1] * (count - len(self.versions)) + versions[count:]
        self.ids += fresh
        self.mask += [1] * len(fresh)
        self.logprobs += answer.column("logprobs")[0].tolist()[count:]
        self.rewards += [0.0] * len(fresh)
        self.stops.append(str(answer.column("finish")[0]))
        self.marks.append((len(self.text), count))
        self.text += text
        self.marks.append((len(self.text), len(self.ids)))

    def end(self) -> None:
        """Leave out what the model has not answered."""
        tokens = self.marks[-1][1]
        for column in (self.ids, self.mask, self.logprobs, self.rewards, self.versions):
            del column[tokens:]

    def reward(self, value: float) -> None:
        """Earn a reward at the last token."""
        self.rewards[-1] += value


class Paths:
    """The paths of one episode, or of a client's session.

    Args:
        template: Writes chats; None for episodes of token ids.
        ends: Tokens that end an answer.
    """

    def __init__(self, template: Template | None, ends: Collection[int] = ()) -> None:
        self.all: list[Path] = []
        self._template, self._ends = template, ends
        self._written: dict[str, str] = {}

    def of_chat(self, chat: Chat) -> Path:
        """The path whose ids the model answers, for a whole chat.

        An answer of the chat stands there as the text that the model wrote, where the template leaves it so: calls of
        tools keep their spaces. Elsewhere it stands as the message that was read from it.
        """
        assert self._template is not None
        as_written = [
            {"role": "assistant", "content": self._written[key]} if (key := _key(turn)) in self._written else turn
            for turn in chat
        ]
        text = self._template.text(chat, asks=True)
        start, characters, tokens = self._start(text)
        if as_written != chat:
            try:
                written = self._template.text(as_written, asks=True)
            except ValueError:  # a template that wants the calls before their answers
                written = ""
            if (other := self._start(written))[1] > characters:
                text, (start, characters, tokens) = written, other
        path = self._going_on(start, characters, tokens)
        path.add(self._encoded(text[characters:]))
        path.text = text
        return path

    def of_ids(self, ids: list[int]) -> Path:
        """The path of an episode of token ids, with further ones that the model reads."""
        path = self.all[-1] if self.all else self._going_on(None, 0, 0)
        path.add(ids)
        return path

    def _start(self, text: str) -> tuple[Path | None, int, int]:
        """The path and the place in it, in characters and tokens, with the longest text that begins another."""
        found: tuple[Path | None, int, int] = (None, 0, 0)
        for path in self.all:
            for characters, tokens in reversed(path.marks):
                if characters > found[1] and text.startswith(path.text[:characters]):
                    found = path, characters, tokens
                    break
        return found

    def _going_on(self, start: Path | None, characters: int, tokens: int) -> Path:
        """A path from a place on: the same one where this is its end."""
        if start is not None and tokens == len(start.ids):
            return start
        self.all.append(Path(start, characters, tokens))
        return self.all[-1]

    def _encoded(self, text: str) -> list[int]:
        assert self._template is not None
        return [int(one) for one in self._template.tokenizer.encode(text, add_special_tokens=False)]

    def wrote(self, path: Path, answer: Rollouts) -> tuple[list[int], str]:
        """Take in an answer to a path's ids; returns its ids, and its text without the end token."""
        ids: list[int] = answer.ids[0].tolist()[len(path.ids) :]
        if self._template is None:
            path.wrote(answer, "")
            return ids, ""
        is_ended = bool(ids) and ids[-1] in self._ends
        decode = self._template.tokenizer.decode
        text = str(decode(ids[:-1] if is_ended else ids, clean_up_tokenization_spaces=False))
        path.wrote(answer, str(decode(ids, clean_up_tokenization_spaces=False)))
        return ids, text

    def answered(self) -> list[Path]:
        """The paths in which the model wrote something, without what it has not answered."""
        found = [path for path in self.all if path.stops]
        for path in found:
            path.end()
        return found

    def cut(self) -> list[Path]:
        """The same, of an episode that a limit has ended."""
        for path in self.all:
            path.is_cut = True
        return self.answered()

    def remember(self, message: dict[str, Any], text: str) -> None:
        """Know a message of the assistant again, with the text that the model wrote."""
        self._written[_key(message)] = text


def _key(message: dict[str, Any]) -> str:
    """A message of the assistant as a text that is equal where a client has sent it back."""
    if message.get("role") != "assistant":
        return ""
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    found = [(call.get("name"), _plain(call.get("arguments"))) for call in calls]
    return json.dumps([message.get("content") or "", found], sort_keys=True, default=str)


def _plain(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
