"""Paths: the sequences of one episode, exactly as the engine saw them.

Invariant: the ids of a path are those that the engine was given and those that it wrote, in order. What it wrote is
never encoded again along a path, and a token that it wrote counts in one path alone. A turn goes on with the path whose
text begins the new one. Where a template has rewritten the history (without earlier thoughts, say), a client goes on
from an earlier turn, or draws in another way, a new path begins, with as many ids of an old one as their texts share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.chats import with_objects
from twinkle_engines.batches.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twinkle_engines.batches.chats import Chat, Template
    from twinkle_engines.samplers.sampler import SamplingParams


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
        params: How its answers were drawn; None before the first one.
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
        self.params: SamplingParams | None = None
        self.marks = [(characters, tokens)] if tokens else []

    def add(self, ids: list[int], mask: int = 0, logprobs: list[float] | None = None) -> None:
        """Take in tokens that the model reads, or has written."""
        self.ids += ids
        self.mask += [mask] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        self.rewards += [0.0] * len(ids)

    def wrote(self, answer: Rollouts, text: str, params: SamplingParams | None, number: int = 0) -> None:
        """Take in what the model wrote.

        Args:
            answer: Sequences: the path's ids, and those that it wrote.
            text: Of these, with the end token.
            params: How it was drawn.
            number: Of the sequence.
        """
        count, ids = len(self.ids), answer.ids[number].tolist()
        if ids[:count] != self.ids:
            raise RuntimeError("the sampler has answered other ids than it was given")
        versions = answer.column("versions")[number].tolist()
        self.versions += versions[count : count + 1] * (count - len(self.versions)) + versions[count:]
        self.add(ids[count:], 1, answer.column("logprobs")[number].tolist()[count:])
        self.stops.append(str(answer.column("finish")[number]))
        self.marks += [(len(self.text), count), (len(self.text) + len(text), len(self.ids))]
        self.text, self.params = self.text + text, params

    def end(self) -> None:
        """Leave out what the model has not answered."""
        for column in (self.ids, self.mask, self.logprobs, self.rewards, self.versions):
            del column[self.marks[-1][1] :]


class Paths:
    """The paths of one episode, or of a client's session.

    Args:
        template: Writes chats; None for episodes of token ids.
        ends: Tokens that end an answer.
    """

    def __init__(self, template: Template | None, ends: Collection[int] = ()) -> None:
        self.all: list[Path] = []
        self.template, self._ends = template, ends
        self._written: dict[str, str] = {}

    def of_chat(self, chat: Chat, params: SamplingParams | None = None) -> Path:
        """The path whose ids the model answers, for a whole chat.

        An answer of the chat stands there as the text that the model wrote, where the template leaves it so: calls of
        tools keep their spaces. Elsewhere it stands as the message that was read from it.
        """
        assert self.template is not None
        as_written = [
            {"role": "assistant", "content": self._written[key]} if (key := _key(turn)) in self._written else turn
            for turn in chat
        ]
        text = self.template.text(chat, asks=True)
        start, characters, tokens = self._start(text)
        if as_written != chat:
            try:
                written = self.template.text(as_written, asks=True)
            except ValueError:  # a template that wants the calls before their answers
                written = ""
            if (other := self._start(written))[1] > characters:
                text, (start, characters, tokens) = written, other
        if start is None or tokens < len(start.ids) or start.params not in (None, params):
            start = Path(start, characters, tokens)
            self.all.append(start)
        ids = self.template.tokenizer.encode(text[characters:], add_special_tokens=False)
        start.add([int(one) for one in ids])
        start.text = text
        return start

    def of_ids(self, ids: list[int]) -> Path:
        """The path of an episode of token ids, with further ones that the model reads."""
        self.all = self.all or [Path()]
        self.all[-1].add(ids)
        return self.all[-1]

    def _start(self, text: str) -> tuple[Path | None, int, int]:
        """The path and the place in it, in characters and tokens, with the longest text that begins another."""
        found: tuple[Path | None, int, int] = (None, 0, 0)
        for path in self.all:
            for characters, tokens in reversed(path.marks):
                if characters > found[1] and text.startswith(path.text[:characters]):
                    found = path, characters, tokens
                    break
        return found

    def wrote(
        self, path: Path, answer: Rollouts, params: SamplingParams | None = None, number: int = 0
    ) -> tuple[list[int], str]:
        """Take in an answer to a path's ids; returns its ids, and its text without the end token."""
        ids: list[int] = answer.ids[number].tolist()[len(path.ids) :]
        if self.template is None:
            path.wrote(answer, "", params, number)
            return ids, ""
        is_ended = bool(ids) and ids[-1] in self._ends
        decode = self.template.tokenizer.decode
        text = str(decode(ids[:-1] if is_ended else ids, clean_up_tokenization_spaces=False))
        path.wrote(answer, str(decode(ids, clean_up_tokenization_spaces=False)), params, number)
        path.answer = str(answer.completions[number]) if answer.completions else ""
        return ids, text

    def answered(self, *, cut: bool = False) -> list[Path]:
        """The paths in which the model wrote something, without what it has not answered; `cut` where a limit ends."""
        found = [path for path in self.all if path.stops]
        for path in found:
            path.end()
            path.is_cut |= cut
        return found

    def remember(self, message: dict[str, Any], text: str) -> None:
        """Know a message of the assistant again, with the text that the model wrote."""
        self._written[_key(message)] = text


def _key(message: dict[str, Any]) -> str:
    """A message of the assistant as a text that is equal where a client has sent it back."""
    if message.get("role") != "assistant":
        return ""
    calls = [call.get("function", call) for call in with_objects(message).get("tool_calls") or ()]
    found = [(call.get("name"), call.get("arguments")) for call in calls]
    return json.dumps([message.get("content") or "", found], sort_keys=True, default=str)


def rollouts_of(rows: Sequence[Any], episodes: Sequence[Sequence[Sequence[Path]]]) -> Rollouts:
    """The paths of the episodes of rows as sequences; the keys of rows are columns."""
    paths = [path for row in episodes for episode in row for path in episode]
    of_row = [[number for number, episode in enumerate(row) for _ in episode] for row in episodes]
    given = [dict(row) if isinstance(row, Mapping) else {"prompt": row} for row in rows]
    names = dict.fromkeys(name for row in given for name in row if name != "prompt")
    rollouts = Rollouts(
        [path.ids for path in paths],
        [path.mask for path in paths],
        logprobs=[path.logprobs for path in paths],
        versions=[path.versions for path in paths],
        rewards=[path.rewards for path in paths],
        temperatures=[(path.params and path.params.temperature) or 1.0 for path in paths],
        completions=[path.answer for path in paths],
        finish=["length" if path.is_cut else "stop" for path in paths],
        counts=[len(numbers) for numbers in of_row],
        prompts=[row.get("prompt") for row in given],
        columns={name: [row.get(name) for row in given] for name in names},
    )
    numbers = [number for row in of_row for number in row]
    stops = [list(path.stops) for path in paths]
    return rollouts.with_column("episode", numbers, by="sequence").with_column("stops", stops, by="sequence")
