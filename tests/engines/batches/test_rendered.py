"""Masks by the package renderers, where it is installed: pip install renderers."""

from __future__ import annotations

from typing import Any

import pytest
from chat_templates import TEMPLATES, template_tokenizer

from twinkle.engines import preferences, supervised

pytest.importorskip("renderers", reason="an optional package")
QWEN3 = (
    "{%- set ns = namespace(last=messages|length - 1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\n' }}{%- if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{{- '<think>\n' + (m.reasoning_content or '').strip('\n') + '\n</think>\n\n' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    "{# <|endoftext|> <tool_call> </tool_call> <tool_response> </tool_response> #}"
)
"""Qwen3's way with thoughts, which stay in the last turn alone."""
CHAT = [
    {"role": "user", "content": "Q"},
    {"role": "assistant", "content": "A", "reasoning_content": "T"},
    {"role": "user", "content": "R"},
    {"role": "assistant", "content": "B", "reasoning_content": "U"},
]
LAST = "<think>\nU\n</think>\n\nB<|im_end|>"


def named(template: str) -> Any:
    tokenizer = template_tokenizer(template)
    tokenizer.name_or_path = "Qwen/Qwen3-8B"
    return tokenizer


def said(rows: Any, tokenizer: Any, sequence: int = 0) -> list[str]:
    """The texts that count, in order."""
    texts = [""]
    for token, counts in zip(rows.ids[sequence].tolist(), rows.mask[sequence].tolist(), strict=True):
        texts = [*texts[:-1], texts[-1] + tokenizer.decode([token])] if counts else [*texts, ""]
    return [text for text in texts if text]


def test_a_template_that_drops_thoughts_is_taken_where_its_model_is_known() -> None:
    tokenizer = template_tokenizer(QWEN3)
    with pytest.raises(ValueError, match="in another way"):
        supervised([CHAT], tokenizer)
    tokenizer.name_or_path = "Qwen/Qwen3-8B"
    rows = supervised([CHAT, CHAT[:3], {"prompt": CHAT[:3], "completion": CHAT[3:]}], tokenizer)
    assert [said(rows, tokenizer, i) for i in range(3)] == [["A<|im_end|>", LAST], ["A<|im_end|>"], [LAST]]
    text = tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert tokenizer.decode(rows.ids[0].tolist()) == text
    other = {**CHAT[3], "content": "C"}
    pairs = preferences([{"prompt": CHAT[:3], "chosen": CHAT[3:], "rejected": [other]}], tokenizer)
    assert [said(pairs, tokenizer, i) for i in range(2)] == [[LAST], [LAST.replace("B<", "C<")]]


def test_marks_go_first_and_another_template_of_the_name_is_not_taken_for_the_models() -> None:
    marked = named(TEMPLATES["marks"])
    assert said(supervised([CHAT], marked), marked) == ["A<|im_end|>", "B<|im_end|>"]
    changed = named(QWEN3.replace("<think>\n", "<think>\nSo: "))
    with pytest.raises(ValueError, match="in another way"):
        supervised([CHAT], changed)
