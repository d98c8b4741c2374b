import json
import re
from pathlib import Path

import pytest
from counting import counts_on
from grpo import main


def test_reward_rises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = main(["--steps", "40", "--log", str(tmp_path / "metrics.jsonl")])
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in logged] == history
    assert all(line["lag"] == 0 for line in logged)
    assert all(1.0 <= line["mismatch/mean"] <= line["mismatch/worst"] < 1.001 for line in logged)
    assert len(history) == 40
    assert sum(history[-5:]) / 5 > sum(history[:5]) / 5 + 0.25
    ratio = re.search(r"trainer's: ratio (\S+), worst (\S+)$", capsys.readouterr().out)
    assert ratio is not None
    assert 1.0 <= float(ratio[1]) <= float(ratio[2]) < 1.001


def test_the_reward_of_repeated_words_is_low() -> None:
    digits = list(range(10))
    for text in ("3 3", "3 4", "3 3 3 3", ""):
        assert sum(counts_on([text] * 10, digits)) <= 1.0
    assert counts_on(["4 5", "4 5 6", "5 4", "4", "4 4", "4 5 4 5"], [3] * 6) == [1.0, 2 / 3, 0.0, 0.5, 0.5, 0.5]
    assert counts_on(["9 0", "0 1"], [8, 9]) == [1.0, 1.0]
