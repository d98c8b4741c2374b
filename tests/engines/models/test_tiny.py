"""First programs: a tiny model and its tokenizer, and pairs of answers in the forms of TRL's datasets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from twinkle.engines import SamplingParams, TransformersModel, TransformersSampler, preferences, supervised, tiny_model

CONFIG, TOKENIZER = tiny_model(layers=2, vocabulary=300, hidden_size=32)


def counted(rollouts: Any) -> list[str]:
    return [str(TOKENIZER.decode(ids[mask.bool()])) for ids, mask in zip(rollouts.ids, rollouts.mask, strict=True)]


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_tiny_model_learns_a_chat_and_writes() -> None:
    chat = [said("user", "Was ist los? ü"), said("assistant", "nothing")]
    rows = supervised([chat, {"text": "def f(): return 1"}], TOKENIZER)
    assert counted(rows)[0] == "nothing<|end|>" and len(TOKENIZER) == CONFIG.vocab_size == 300
    assert TOKENIZER.decode(TOKENIZER.encode("ü tabs\t")) == "ü tabs\t"
    model = TransformersModel(CONFIG, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3))
    losses = [(model.forward_backward(rows)["loss"], model.step())[0] for _ in range(8)]
    assert losses[-1] < losses[0]
    made = TransformersSampler(CONFIG, tokenizer=TOKENIZER).sample([chat[:1]], SamplingParams(max_new_tokens=2))
    assert isinstance(made.column("completions")[0], str)


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"prompt": "a b", "chosen": " c", "rejected": " d"}, [" c", " d"]),
        ({"chosen": "a b c", "rejected": "a b d"}, [" c", " d"]),
        ({"chosen": "yes", "rejected": "no"}, ["yes", "no"]),
        ({"prompt": [said("user", "q")], "chosen": [said("assistant", "x")], "rejected": "y"}, ["x", "y"]),
        (
            {
                "chosen": [said("user", "q"), said("assistant", "x")],
                "rejected": [said("user", "q"), said("assistant", "y")],
            },
            ["x", "y"],
        ),
    ],
)
def test_preferences_are_rows_of_two_of_which_the_answers_count(row: Any, answers: list[str]) -> None:
    made = preferences([row, row], TOKENIZER)
    assert made.counts == [2, 2] and counted(made) == [f"{one}<|end|>" for one in answers] * 2
    assert preferences([row], TOKENIZER, max_length=2).lengths == [2, 2]


def test_what_prefers_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="alike"):
        preferences([{"prompt": "a", "chosen": " b", "rejected": " b"}], TOKENIZER)
    with pytest.raises(TypeError, match='"chosen"'):
        preferences([{"prompt": "a", "completion": "b"}], TOKENIZER)
