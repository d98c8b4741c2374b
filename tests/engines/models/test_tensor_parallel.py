from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from run_two_ranks import SAVED, figures

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # peft reads it
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What two ranks found, by the name of the program."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(Path(__file__).parents[1] / "run_two_ranks.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return {"divided": [json.loads((folder / f"divided-{rank}.json").read_text()) for rank in range(2)]}


@pytest.mark.parametrize("name", list(SAVED))
def test_copies_and_tied_heads_are_divided_as_one_process_has_them(told: dict[str, list[Any]], name: str) -> None:
    import twinkle
    from twinkle import DeviceGroup

    with twinkle.session("local", groups=[DeviceGroup("trainer", 1, "CPU")]):
        expected = figures(name, None)
    for rank in told["divided"]:
        for own, other in zip(rank[name], expected, strict=True):
            for left, right in zip(own, other, strict=True):
                assert left == pytest.approx(right, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("apertus", ["ValueError", "act_fn", "tp"]),
        ("phi", ["ValueError", "layernorm", "tp"]),
        ("experts", ["ValueError", "Qwen3MoeForCausalLM", "tp_size=1"]),
        ("adapters", ["ValueError", "adapters are not divided over tp", "tp_size=1"]),
        ("dropout", ["ValueError", "dropout=True is not for tp"]),
    ],
)
def test_what_tp_does_not_divide_is_refused(told: dict[str, list[Any]], name: str, words: list[str]) -> None:
    for rank in told["divided"]:
        assert all(word in rank[name] for word in words), rank[name]


def test_ids_beyond_a_divided_vocabulary_are_named(told: dict[str, list[Any]]) -> None:
    for rank in told["divided"]:
        assert all("id 61, but there are 61" in text for text in rank["ids"])
