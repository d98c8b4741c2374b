"""Templates: what counts of a chat is what the model writes, whatever form a template gives it.

By hand over other templates, such as those of TRL, Transformers and vLLM:
TWINKLE_TEMPLATES=FOLDER TWINKLE_CHATS=100 python -m pytest -s tests/twinkle/engines/test_templates.py
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chat_templates import TEMPLATES, random_chat, template_tokenizer

from twinkle.engines import supervised

CHATS = int(os.environ.get("TWINKLE_CHATS", "8"))
FOLDER = os.environ.get("TWINKLE_TEMPLATES")
GIVEN = {path.stem: path.read_text() for path in sorted(Path(FOLDER).rglob("*.jinja"))} if FOLDER else {}


def outcome(tokenizer: Any, chat: list[dict[str, Any]]) -> str:
    """Compare what counts of a chat with the template's text, and with its marks where it has some."""
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except Exception:
        return "not written by the template"
    try:
        made = supervised([chat], tokenizer)
    except ValueError:
        return "refused"
    assert made.mask is not None
    ids, mask = made.ids[0].tolist(), made.mask[0].tolist()
    if re.search(r"{%-?\s*generation\s*-?%}", tokenizer.chat_template):
        told = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        assert (ids, mask) == (told["input_ids"], told["assistant_masks"])
        return "equal to the marks"
    whole = tokenizer.decode(ids)
    special = {*tokenizer.get_added_vocab().values()}
    added = tokenizer.encode(whole[len(text) :], add_special_tokens=False)
    assert whole.startswith(text) and len(added) <= 1 and (not added or added[0] in special)
    runs, names = [""], {*re.findall(r"\b[au]\d+-[au]", text)}
    for token, counts in zip(ids, mask, strict=True):
        runs = [*runs[:-1], runs[-1] + tokenizer.decode([token])] if counts else [*runs, ""] if runs[-1] else runs
    runs = [run for run in runs if run]
    counted = {*re.findall(r"\b[au]\d+-[au]", " ".join(runs))}
    assert counted == {name for name in names if name[0] == "a"}, f"counts {runs} of {text!r}"
    for run in runs:
        last = tokenizer.encode(run.rstrip(), add_special_tokens=False)[-1]
        assert last in special or run.endswith("\n"), f"nothing ends {run!r} in {text!r}"
    return "equal to the text"


@pytest.mark.parametrize("name", [*TEMPLATES, *GIVEN])
def test_answers_count_with_what_ends_them(name: str) -> None:
    template = {**TEMPLATES, **GIVEN}[name]
    tokenizer = template_tokenizer(template)
    draw = Random(name)
    found = Counter(outcome(tokenizer, random_chat(draw, tools=i % 3 == 0)) for i in range(CHATS))
    if name in TEMPLATES:
        assert found["equal to the text"] + found["equal to the marks"] == CHATS
    else:
        print(name, dict(found))


def test_a_first_turn_of_the_assistant_counts_alone() -> None:
    chat = [
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "2?"},
        {"role": "assistant", "content": "2"},
    ]
    for name in ("chatml", "default system", "next role ends", "headers", "lines"):
        tokenizer = template_tokenizer(TEMPLATES[name])
        for turns in (chat, [{"role": "system", "content": "S"}, *chat]):
            made = supervised([turns], tokenizer)
            assert made.mask is not None
            written = tokenizer.decode(
                [t for t, m in zip(made.ids[0].tolist(), made.mask[0].tolist(), strict=True) if m]
            )
            assert re.fullmatch(r"Hi(<[^>]*>)*\n?2(<[^>]*>)*\n?", written), (name, written)
