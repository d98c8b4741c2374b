"""Templates: what counts of a chat is what the model writes, whatever form a template gives it.

Those of vLLM's wheel are read in tests/vllm. By hand over other templates, such as those of TRL and of vLLM's examples:
TWINKLE_TEMPLATES=FOLDER TWINKLE_CHATS=100 python -m pytest -s tests/engines/batches/test_templates.py
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import transformers
from chat_templates import TEMPLATES, outcome, random_chat, template_tokenizer, templates_below, templates_inside

from twinkle.engines import supervised

CHATS = int(os.environ.get("TWINKLE_CHATS", "8"))
FOLDER = os.environ.get("TWINKLE_TEMPLATES")
GIVEN = templates_below(Path(FOLDER)) if FOLDER else {}
TAKEN = ("chatml", "default system", "marks", "pairs", "pairs without spaces", "headers", "outputs of calls", "lines")
"""Forms without marks that write each turn alike, whatever follows, and the marked one."""
ANOTHER_END = ("end of text behind all", "end of the last", "other end of the last", "channels")
"""Forms whose last turn ends in another way; chats with an empty answer are refused there."""
SHIPPED = templates_inside(Path(transformers.__file__).parent)
"""Those that processors of Transformers fall back on."""


@pytest.mark.parametrize("name", [*TEMPLATES, *SHIPPED, *GIVEN])
def test_answers_count_with_what_ends_them(name: str) -> None:
    template = {**TEMPLATES, **SHIPPED, **GIVEN}[name]
    tokenizer = template_tokenizer(template)
    draw = Random(name)
    found = Counter(outcome(tokenizer, random_chat(draw, tools=i % 3 == 0)) for i in range(CHATS))
    taken = found["equal to the text"] + found["equal to the marks"]
    if name in TAKEN:
        assert taken == CHATS
    elif name in ANOTHER_END:
        assert taken > CHATS / 2 and taken + found["refused"] == CHATS
    elif name in TEMPLATES:
        assert found["refused"] == CHATS
    else:
        print(name, dict(found))


def test_a_first_turn_of_the_assistant_counts_alone() -> None:
    chat = [
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "2?"},
        {"role": "assistant", "content": "2"},
    ]
    for name in ("chatml", "default system", "headers", "lines"):
        tokenizer = template_tokenizer(TEMPLATES[name])
        for turns in (chat, [{"role": "system", "content": "S"}, *chat]):
            made = supervised([turns], tokenizer)
            assert made.mask is not None
            written = tokenizer.decode(
                [t for t, m in zip(made.ids[0].tolist(), made.mask[0].tolist(), strict=True) if m]
            )
            assert re.fullmatch(r"Hi(<[^>]*>)*\n?2(<[^>]*>)*\n?", written), (name, written)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [("end of text behind all", "<|end|>\n", "</s>"), ("end of the last", "<|eot|>\n", "</s>"),
     ("channels", "<|end|>", "<|return|>")],
)  # fmt: skip
def test_each_answer_counts_with_its_own_end(name: str, first: str, last: str) -> None:
    tokenizer = template_tokenizer(TEMPLATES[name])
    chat = [{"role": role, "content": text} for role, text in (("user", "Q"), ("assistant", "A")) * 2]
    made = supervised([chat, chat[:3]], tokenizer)
    assert made.mask is not None
    texts = [tokenizer.decode(ids[mask.bool()].tolist()) for ids, mask in zip(made.ids, made.mask, strict=True)]
    head = "<|channel|>final<|message|>" if name == "channels" else ""
    end = first + last if name == "end of text behind all" else last
    assert texts == [f"{head}A{first}{head}A{end}", f"{head}A{first}"]


def test_what_opens_the_next_question_ends_no_answer() -> None:
    tokenizer = template_tokenizer(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role == 'assistant' and loop.last %}"
        "{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    chat = [{"role": role, "content": text} for role, text in (("user", "Q"), ("assistant", "A")) * 2]
    with pytest.raises(ValueError, match="in another way"):
        supervised([chat], tokenizer)


@pytest.mark.parametrize(("name", "end"), [("outputs of calls", "</s>")])
def test_neither_the_header_of_a_turn_nor_what_follows_its_end_counts(name: str, end: str) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "Rome"}}}
    tokenizer = template_tokenizer(TEMPLATES[name])
    user = {"role": "user", "content": "Q"}
    said = {"role": "assistant", "content": "Fine"}
    calling: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    written = '<tool_call>{"name": "look", "arguments": {"at": "Rome"}}</tool_call>'
    with_call = [user, calling, {"role": "tool", "content": "R"}, said, user, said]
    for chat in (with_call, [user, said, user, said, user]):
        made = supervised([chat], tokenizer)
        assert made.mask is not None
        marked = zip(made.ids[0].tolist(), made.mask[0].tolist(), strict=True)
        runs = re.split("\0+", "".join(tokenizer.decode([token]) if counts else "\0" for token, counts in marked))
        assert [run for run in runs if run] == [
            ("Fine" if turn is said else written) + end for turn in chat if turn["role"] == "assistant"
        ]


CALLS = {
    "objects": "{{ c.function | tojson }}",
    "pairs": "{% for name, value in c.function.arguments.items() %}{{ name }}={{ value }}{% endfor %}",
    "each": "{% for name in c.function.arguments %}{{ name }}={{ c.function.arguments[name] }}{% endfor %}",
    "texts": "{{ c.function.arguments + '' }}",
}


@pytest.mark.parametrize("form", CALLS)
def test_arguments_that_are_json_texts_are_written_as_objects_are(form: str) -> None:
    template = TEMPLATES["chatml"].replace("<tool_call>{{ c.function | tojson }}</tool_call>", CALLS[form])
    tokenizer, draw = template_tokenizer(template), Random(form)
    for _ in range(CHATS):
        chat = random_chat(draw, tools=True)
        texts: list[dict[str, Any]] = json.loads(json.dumps(chat))
        for call in (call for turn in texts for call in turn.get("tool_calls", ())):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        expected = texts if form == "texts" else chat
        whole = tokenizer.apply_chat_template(expected, tokenize=False)
        assert tokenizer.decode(supervised([texts], tokenizer).ids[0].tolist()) == whole
        assert supervised([texts], tokenizer) == supervised([expected], tokenizer)


def test_content_in_parts_is_never_written_as_pythons_list() -> None:
    def parts(*texts: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text} for text in texts]

    said = {"role": "assistant", "content": "Fine"}
    plain, reads = (
        template_tokenizer(TEMPLATES["chatml"].replace("{{ m.content }}", written))
        for written in ("{{ m.content }}", "{% for p in m.content %}{{ p.text or p }}{% endfor %}")
    )
    two = [[{"role": "user", "content": parts("Q", "R")}, said]]
    assert "QR" in reads.decode(supervised(two, reads).ids[0].tolist())
    for content in (parts("Q"), parts("Q", "R"), {"answer": 2}, [{"type": "image"}]):
        with pytest.raises(ValueError, match="content"):
            supervised([[{"role": "user", "content": content}, said]], plain)
