"""Prompts: texts, chats and ids as tokens that a model continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tiny_tokenizer import tiny_tokenizer
from tokenizers import processors

from twinkle_engines.batches.chats import Template, to_ids

if TYPE_CHECKING:
    from collections.abc import Callable

CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ASK = {"role": "user", "content": "hi"}


def with_marks(begin: bool, end: bool, template: str = CHATML) -> Any:
    made = tiny_tokenizer().__class__(
        tokenizer_object=tiny_tokenizer().backend_tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str()),
        eos_token="<end>",
        bos_token="the",
        chat_template=template,
    )
    whole = [*(["the"] if begin else []), "$A", *(["<end>"] if end else [])]
    marks = [("the", made.convert_tokens_to_ids("the")), ("<end>", made.eos_token_id)]
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(single=whole, special_tokens=marks)
    return made


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("text", ["a dog", "the dog", "a dog<end>", "", "the", "<end>", "dogs the"])
def test_a_text_has_one_begin_and_no_end_that_it_does_not_write(begin: bool, end: bool, text: str) -> None:
    tokenizer = with_marks(begin, end)
    first = tokenizer.convert_tokens_to_ids("the")
    bare = tokenizer.encode(text, add_special_tokens=False)
    right = [first] * (begin and bare[:1] != [first]) + bare
    if right:
        assert to_ids(text, Template(tokenizer)) == right
    else:
        with pytest.raises(ValueError, match="no tokens"):
            to_ids(text, Template(tokenizer))


@pytest.mark.parametrize(
    "prompt", [3, {"a": 1}, [1.5], np.array([[1, 2]]), np.array([1.0]), torch.tensor([True]), [True], b"text", [ASK, 1]]
)
def test_another_form_is_an_error(prompt: Any) -> None:
    with pytest.raises(TypeError, match="token ids"):
        to_ids(prompt, None)


@pytest.mark.parametrize("form", [list, tuple, np.array])
def test_a_chat_that_ends_with_the_assistant_is_continued(form: Callable[[list[Any]], Any]) -> None:
    tokenizer = with_marks(begin=True, end=True)
    template = Template(tokenizer)

    def text(chat: list[Any]) -> str:
        return str(tokenizer.decode(to_ids(form(chat), template)))

    assert text([ASK]) == "<user>hi<end><assistant>"
    assert text([ASK, {"role": "assistant", "content": "It is"}]) == "<user>hi<end><assistant>It is"
    assert text([ASK, {"role": "assistant", "content": ""}]) == "<user>hi<end><assistant>"
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    with pytest.raises(ValueError, match="tool"):
        text([ASK, {"role": "assistant", "content": "", "tool_calls": [call]}])


def test_a_template_gets_tools_and_variables_those_of_a_row_first() -> None:
    from twinkle_engines.batches.chats import encoded_rows

    tokenizer = with_marks(
        begin=False, end=False, template="{{ tools | tojson }} {{ thinking }}{{ messages[0].content }}"
    )
    template = Template(tokenizer, [{"name": "f"}], {"thinking": "yes"})
    rows = [
        {"prompt": [ASK]},
        {"prompt": [ASK], "tools": '[{"name": "g", "d": null}]', "chat_template_kwargs": {"thinking": 0}},
    ]
    made = [tokenizer.decode(ids) for ids in encoded_rows(rows, template)]
    assert made == ['[{"name": "f"}] yeshi', '[{"name": "g"}] 0hi']


def test_a_template_that_refuses_a_chat_is_an_error_with_its_reason() -> None:
    tokenizer = with_marks(begin=False, end=False, template="{{ raise_exception('only users') }}")
    with pytest.raises(ValueError, match="only users"):
        to_ids([ASK], Template(tokenizer))
