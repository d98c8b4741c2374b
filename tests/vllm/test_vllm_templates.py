"""The templates that vLLM brings: what counts of a chat is what the model writes, or the chat is refused by name."""

from __future__ import annotations

import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
from chat_templates import outcome, random_chat, template_tokenizer, templates_below

CHATS = int(os.environ.get("TWINKLE_CHATS", "30"))
FOUND = find_spec("vllm")
TEMPLATES = {} if FOUND is None else templates_below(Path(str(FOUND.origin)).parent)


def test_there_are_some() -> None:
    assert len(TEMPLATES) >= 5


@pytest.mark.parametrize("name", TEMPLATES)
def test_answers_count_with_what_ends_them(name: str) -> None:
    tokenizer = template_tokenizer(TEMPLATES[name])
    draw = Random(name)
    found = Counter(outcome(tokenizer, random_chat(draw, tools=i % 3 == 0)) for i in range(CHATS))
    print(name, dict(found))
    assert found.total() == CHATS
