"""Paths of random conversations: they have what the engine saw and wrote, each written token once."""

from __future__ import annotations

import json
from itertools import count, pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from chat_templates import TEMPLATES, random_chat, template_tokenizer

from twinkle.engines import Rollouts
from twinkle_engines.agents.episodes import read_message
from twinkle_engines.agents.paths import Paths
from twinkle_engines.batches.chats import Template

if TYPE_CHECKING:
    from twinkle_engines.agents.paths import Path

CONVERSATIONS = 40
_THINKS = "{% set parts = m.content.split('</think>') %}"
_CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
KINDS = {
    **{name: TEMPLATES[name] for name in ("lines", "chatml", "headers", "pairs", "channels", "thoughts of the last")},
    "qwen 3": "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'assistant' %}"
    + _THINKS
    + "<|im_start|>assistant\n{% if loop.index0 > ns.last and parts | length > 1 %}"
    "{{ parts[0] }}</think>\n\n{% endif %}{{ parts[-1].lstrip('\n') }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% else %}" + _CHATML + "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "deepseek": "<s>{% for m in messages %}{% if m.role == 'assistant' %}"
    + _THINKS
    + "<|assistant|>{{ parts[-1] }}</s>{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}",
    "mistral": "<s>{% for m in messages %}{% if m.role == 'tool' %}{% if not messages[loop.index0 - 1].tool_calls %}"
    "{{ raise_exception('a tool answers a call') }}{% endif %}[TOOL]{{ m.content }}[/TOOL]"
    "{% elif m.role == 'assistant' %}{{ m.content }}{% for c in m.tool_calls or [] %}[CALL]"
    "{{ c.function | tojson }}{% endfor %}</s>{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}",
}
"""Forms of models' templates: some drop thoughts of earlier turns, strip spaces, or want calls before answers."""
KEEPS = ("lines", "chatml")
"""Those that write each turn as it was written, so that a conversation is one sequence."""


class Engine:
    """Writes random answers, and keeps what it was given and what it wrote.

    Attributes:
        seen: Prompt and answer of each call, in ids, with the numbers of the answer's tokens.
    """

    def __init__(self, tokenizer: Any, draw: Random) -> None:
        self.tokenizer, self.draw = tokenizer, draw
        self.seen: list[tuple[list[int], list[int], list[int]]] = []
        self._numbers = count(1)

    def answer(self, prompt: list[int], text: str) -> Rollouts:
        """An answer with a text, which may end without an end."""
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        stops = self.draw.random() < 0.8
        ids += [self.end()] if stops else []
        numbers = [next(self._numbers) for _ in ids]
        self.seen.append((list(prompt), ids, numbers))
        zeros = [0] * len(prompt)
        return Rollouts(
            [prompt + ids],
            [zeros + [1] * len(ids)],
            logprobs=[[*map(float, zeros), *[-float(number) for number in numbers]]],
            versions=[zeros + [number // 50 for number in numbers]],
            finish=["stop" if stops else "length"],
            completions=[text],
        )

    def end(self) -> int:
        """The token that ends a turn of the template."""
        marks = ("<|im_end|>", "<|eot|>", "<|end|>", "</s>")
        vocabulary = self.tokenizer.get_vocab()
        return int(next(vocabulary[mark] for mark in marks if mark in vocabulary))


def written(draw: Random, tools: bool) -> str:
    """What a model may write: thoughts, spaces, calls of tools in a form of its own."""
    text: str = random_chat(draw, system=False)[1]["content"]
    if draw.random() < 0.4:
        text = f"<think>\nhm {draw.randint(0, 99)}\n</think>\n\n{text}"
    if tools and draw.random() < 0.5:
        call = json.dumps({"name": "look", "arguments": {"at": draw.randint(0, 9)}}, indent=draw.choice((None, 1)))
        text += f"<tool_call>\n{call}\n</tool_call>"
    return text + draw.choice(("", "", " ", "\n"))


def converse(paths: Paths, engine: Engine, draw: Random, tools: bool, *, straight: bool = False) -> None:
    """A random conversation: turns, tools, retries, earlier turns, condensed histories and sub-agents."""
    chat: list[dict[str, Any]] = [{"role": "user", "content": f"q{draw.random()}"}]
    before: list[list[dict[str, Any]]] = []
    for turn in range(draw.randint(2, 6)):
        before.append(list(chat))
        path = paths.of_chat(chat)
        assert engine.tokenizer.decode(path.ids) == path.text
        _, text = paths.wrote(path, engine.answer(path.ids, written(draw, tools)))
        message, calls = read_message(engine.tokenizer, text, [print] if tools else [])
        paths.remember(message, text)
        chat.append(json.loads(json.dumps(message)))
        if message.get("tool_calls"):
            chat += [{"role": "tool", "name": call.name, "content": f"t{turn}"} for call in calls]
        else:
            chat.append({"role": "user", "content": f"q{turn} {draw.random()}"})
        if not straight and draw.random() < 0.3:
            kind = draw.choice(("retry", "condensed", "sub-agent"))
            chat = {
                "retry": list(draw.choice(before)),
                "condensed": [{"role": "user", "content": f"so far: {turn}"}],
                "sub-agent": [{"role": "system", "content": "other"}, {"role": "user", "content": f"sub {turn}"}],
            }[kind]


def check(all_paths: list[Path], engine: Engine) -> None:
    """Each answer stands in one path, behind the ids that the engine was given for it; nothing else counts."""
    places = {-path.logprobs[i]: (path, i) for path in all_paths for i in range(len(path.ids)) if path.mask[i]}
    assert sum(sum(path.mask) for path in all_paths) == len(places) == sum(len(ids) for _, ids, _ in engine.seen)
    for prompt, ids, numbers in engine.seen:
        path, start = places[numbers[0]]
        assert path.ids[:start] == prompt and start == len(prompt)
        assert path.ids[start : start + len(ids)] == ids
        assert all(places[number] == (path, start + i) for i, number in enumerate(numbers))
        assert path.versions[start : start + len(ids)] == [number // 50 for number in numbers]
    for path in all_paths:
        columns = (path.ids, path.mask, path.logprobs, path.versions, path.rewards)
        assert len({len(column) for column in columns}) == 1
        assert all(path.logprobs[i] == 0 for i in range(len(path.ids)) if not path.mask[i])
        assert all(first <= second for first, second in pairwise(path.marks))


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_paths_have_what_the_engine_saw_and_each_written_token_once(kind: str, tools: bool) -> None:
    tokenizer = template_tokenizer(KINDS[kind])
    draw = Random(f"{kind}{tools}")
    for _ in range(CONVERSATIONS):
        engine = Engine(tokenizer, draw)
        paths = Paths(Template(tokenizer), [engine.end()])
        converse(paths, engine, draw, tools)
        check(paths.answered(), engine)


@pytest.mark.parametrize("kind", KEEPS)
def test_a_conversation_of_a_template_that_keeps_its_turns_is_one_path(kind: str) -> None:
    tokenizer = template_tokenizer(KINDS[kind])
    draw = Random(kind)
    for _ in range(CONVERSATIONS):
        engine = Engine(tokenizer, draw)
        paths = Paths(Template(tokenizer), [engine.end()])
        converse(paths, engine, draw, tools=True, straight=True)
        (path,) = paths.answered()
        check([path], engine)


def test_a_template_that_drops_thoughts_begins_a_path_for_each_turn_that_had_some() -> None:
    tokenizer = template_tokenizer(KINDS["qwen 3"])
    engine = Engine(tokenizer, Random(1))
    paths = Paths(Template(tokenizer), [engine.end()])
    chat: list[dict[str, Any]] = [{"role": "user", "content": "1 + 1?"}]
    for text in ("<think>\nhm\n</think>\n\n2", "3", "<think>\nhm\n</think>\n\n4"):
        path = paths.of_chat(chat)
        paths.remember(
            message := {"role": "assistant", "content": text}, paths.wrote(path, engine.answer(path.ids, text))[1]
        )
        chat += [message, {"role": "user", "content": "and?"}]
    first, second = paths.answered()
    check([first, second], engine)
    assert [len(path.stops) for path in (first, second)] == [1, 2]
    assert "hm" not in second.text.partition("and?")[0]  # thoughts of earlier turns are not there
