"""Examples for supervised tuning: the answers count, and nothing else does."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pytest
from chat_templates import TEMPLATES, template_tokenizer
from tiny_models import CONFIGS, adamw
from tiny_tokenizer import tiny_tokenizer
from transformers import Qwen3Config

from twinkle import DataLoader, DeviceMesh, concat
from twinkle.engines import Rollouts, TransformersModel, supervised

if TYPE_CHECKING:
    from pathlib import Path

TURNS = "{% for turn in messages %}{{ turn['role'] }}: {{ turn['content'] }}<end>\n{% endfor %}"
OPENED = "{% if add_generation_prompt %}assistant: {% endif %}"
CHAT = [
    {"role": "user", "content": "Count."},
    {"role": "assistant", "content": "One, two"},
    {"role": "user", "content": "More."},
    {"role": "assistant", "content": "three"},
]


def tokenizer(template: str = TURNS + OPENED) -> Any:
    made = tiny_tokenizer().__class__(tokenizer_object=tiny_tokenizer().backend_tokenizer, eos_token="<end>")
    made.chat_template = template
    return made


def texts(rollouts: Rollouts, counted: bool) -> list[str]:
    assert rollouts.mask is not None
    pairs = zip(rollouts.ids, rollouts.mask, strict=True)
    return [tokenizer().decode(ids[mask.bool() == counted].tolist()) for ids, mask in pairs]


@pytest.mark.parametrize("row", [CHAT, {"messages": CHAT, "source": "a page"}])
def test_the_answers_of_a_chat_count(row: Any) -> None:
    made = supervised([row], tokenizer())
    assert texts(made, counted=True) == ["One, two<end>\nthree<end>\n"]
    assert texts(made, counted=False) == ["user: Count.<end>\nassistant: user: More.<end>\nassistant: "]
    assert tokenizer().decode(made.ids[0]) == tokenizer().apply_chat_template(CHAT, tokenize=False)
    asked = tokenizer().apply_chat_template(CHAT[:1], add_generation_prompt=True, return_dict=False)
    assert made.ids[0].tolist()[: len(asked)] == asked  # as a sampler is given it


def test_a_completion_counts_with_its_end() -> None:
    rows = [{"prompt": "Count.", "completion": " One"}, {"prompt": "More.", "completion": " two<end>"}]
    made = supervised(rows, tokenizer())
    assert texts(made, counted=True) == [" One<end>", " two<end>"]
    assert texts(made, counted=False) == ["Count.", "More."]
    cut = supervised(rows, tokenizer(), max_length=4)
    assert cut.lengths == [4, 4] and [ids.tolist() for ids in cut.ids] == [ids[:4].tolist() for ids in made.ids]


def test_all_of_a_text_counts() -> None:
    made = supervised([{"text": "Count. One"}, {"text": "More.<end>"}], tokenizer())
    assert texts(made, counted=True) == ["Count. One<end>", "More.<end>"]


def test_a_template_that_changes_earlier_turns_is_an_error() -> None:
    shown = "{% if loop.last or turn['role'] == 'user' %}{{ turn['content'] }}{% endif %}"
    last_alone = f"{{% for turn in messages %}}{shown}{{% endfor %}}"
    with pytest.raises(ValueError, match="turns 0 to 1 in another way"):
        supervised([CHAT], tokenizer(last_alone))


@pytest.mark.parametrize("row", ["a text", [], {"prompt": "Count."}, {"text": 3}, [{"prompt": "a"}]])
def test_another_form_is_an_error(row: Any) -> None:
    with pytest.raises(TypeError, match="an example is a chat"):
        supervised([row], tokenizer())


def test_a_loader_packs_a_dataset_on_disk(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i} and " * (i % 7 + 1), "completion": f" {i}"} for i in range(40)]
    datasets.Dataset.from_list([{**row, "page": "x" * 50_000} for row in rows]).save_to_disk(tmp_path)
    mapped = datasets.load_from_disk(tmp_path)
    assert len(pickle.dumps(mapped)) < 50_000  # 2 MB of Arrow stay in their file, which loader processes map too
    mapped = mapped.add_column("length", supervised(rows, tokenizer()).lengths)
    two = DeviceMesh.from_sizes(dp_size=2)  # here, on the driver, a step has one pack for each of its data ranks
    own = tokenizer()
    loader = DataLoader(
        mapped,
        batch_size=20,
        max_tokens=100,
        num_workers=1,
        collate_fn=lambda packs: [supervised(one, own) for one in packs],
        device_mesh=two,
    )
    config = Qwen3Config(**{**CONFIGS["qwen3"].to_diff_dict(), "vocab_size": 300})
    packed, padded = (TransformersModel(config, optimizer=adamw) for _ in range(2))
    packs = next(iter(loader))
    assert len(packs) == 2 and all(60 < sum(pack.lengths) <= 100 for pack in packs)
    told = packed.forward_backward(packs)
    assert told["tokens"] == padded.forward_backward(concat(packs))["tokens"] > 0


@pytest.mark.parametrize("form", [list, tuple, np.array])
def test_prompts_and_completions_may_be_chats_and_the_completion_counts(form: Any) -> None:
    row = {"prompt": form(CHAT[:3]), "completion": form(CHAT[3:])}
    assert texts(supervised([row], tokenizer()), counted=True) == ["three<end>\n"]
    assert texts(supervised([{**row, "completion": "three"}], tokenizer()), counted=True) == ["three<end>\n"]


def test_rows_of_parquet_and_arrow_are_those_of_python(tmp_path: Path) -> None:
    import pandas as pd

    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "1"}}}
    other = {"type": "function", "function": {"name": "g", "arguments": {"b": "x"}}}
    template = TURNS.replace("<end>", "{% if 'tool_calls' in turn %}{{ turn.tool_calls | tojson }}{% endif %}<end>")
    tools = [[{"name": "f", "parameters": {"a": "int"}}], [{"name": "g", "parameters": {"b": "str"}}]]
    template = "{{ tools | tojson if tools else '' }}" + template
    rows = [
        {"messages": [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [call]}], "tools": tools[0]},
        {"messages": [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [other]}], "tools": tools[1]},
        {"messages": CHAT, "tools": []},
    ]
    right = supervised(rows, tokenizer(template))
    arrow = datasets.Dataset.from_list(rows)
    arrow.to_parquet(tmp_path / "rows.parquet")
    parquet = pd.read_parquet(tmp_path / "rows.parquet").to_dict("records")
    for form in (list(arrow), parquet):
        assert supervised(form, tokenizer(template)) == right
    kept = {"type": "function", "function": {"name": "f", "arguments": {"a": None}}}  # a null of the user's own
    made = supervised([[CHAT[0], {"role": "assistant", "content": "", "tool_calls": [kept]}]], tokenizer(template))
    assert '"a": null' in texts(made, counted=True)[0]


@pytest.mark.parametrize("role", ["model", "gpt", "bot", "Assistant", "ASSISTANT"])
def test_a_chat_whose_answers_have_another_role_is_refused(role: str) -> None:
    tokenizer = template_tokenizer(TEMPLATES["chatml"])
    asked = {"role": "user", "content": "Q"}
    with pytest.raises(ValueError, match=role):
        supervised([[asked, {"role": role, "content": "A"}]], tokenizer)
    for others in (["user"], ["system", "user"], ["user", "tool"]):
        made = supervised([[{"role": one, "content": "Q"} for one in others]], tokenizer)
        assert made.mask is not None and not made.mask[0].any()
