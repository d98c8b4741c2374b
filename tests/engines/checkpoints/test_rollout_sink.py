"""What a RolloutSink keeps, and the page that is made of it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle.cli import main
from twinkle.engines import Rollouts, RolloutSink, rollout_page, tiny_model

if TYPE_CHECKING:
    from pathlib import Path

CHAT = [{"role": "system", "content": "be short"}, {"role": "user", "content": "</script><b>1 + 1"}]


def rollouts() -> Rollouts:
    made = Rollouts(
        [[1, 2, 3, 4], [1, 5], [9, 8]],
        [[0, 0, 1, 1], [0, 1], [0, 0]],
        logprobs=[[0.0, 0.0, -0.123456, -2.0], [0.0, math.inf], [0.0, 0.0]],
        rewards=[1.0, 0.5, 0.0],
        counts=[2, 1],
        prompts=[CHAT, "__ROWS__ of text"],
        completions=["two", "", "none"],
        columns={"answer": [torch.tensor(2), {"a": 1}]},
    )
    return made.with_column("wide", [torch.zeros(n, 3) for n in made.lengths])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_row_is_a_line_with_what_was_sampled(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rollouts.jsonl"
    RolloutSink(path).log(rollouts(), step=3)
    first, second = lines_of(path)
    assert first == {
        "step": 3,
        "prompt": CHAT,
        "row": {"answer": 2},
        "sequences": [
            {
                "completions": "two",
                "reward": 1.0,
                "tokens": {"text": [3, 4], "mask": [1, 1], "logprobs": [-0.1235, -2.0], "rewards": [0.0, 1.0]},
            },
            {
                "completions": "",
                "reward": 0.5,
                "tokens": {"text": [5], "mask": [1], "logprobs": [None], "rewards": [0.5]},
            },
        ],
    }
    assert second["row"] == {"answer": {"a": 1}} and second["sequences"][0]["tokens"]["text"] == []
    _, tokenizer = tiny_model(vocabulary=300)
    RolloutSink(path, tokenizer).log(Rollouts([tokenizer.encode("count on: 3")]), step=4)
    assert "".join(lines_of(path)[-1]["sequences"][0]["tokens"]["text"]) == "count on: 3"


def test_a_resumed_run_logs_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    sink = RolloutSink(path)
    for step in (1, 2, 2, 3):
        sink.log(rollouts()[:1], step=step)
    assert [one["step"] for one in lines_of(path)] == [1, 2, 2, 3]
    with path.open("a") as file:
        file.write('{"step": 4, "prom')  # the run was killed
    RolloutSink(path).log(rollouts(), step=2)
    assert [one["step"] for one in lines_of(path)] == [1, 2, 2]


class Scripts(HTMLParser):
    """The texts of the scripts of a page, by id, as a browser finds them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag == "script":
            self.inside = dict(attrs).get("id") or "program"
            self.found[self.inside] = ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = None

    def handle_data(self, data: str) -> None:
        if self.inside is not None:
            self.found[self.inside] += data


def test_the_page_has_all_rows_in_one_file(tmp_path: Path) -> None:
    path, page = tmp_path / "rollouts.jsonl", tmp_path / "page.html"
    sink = RolloutSink(path)
    for step in range(3):
        sink.log(rollouts(), step=step)
    assert main(["rollouts", str(path), "--out", str(page)]) == 0
    text = page.read_text()
    scripts = Scripts(text).found
    assert set(scripts) == {"index", "rows", "program"}
    assert [json.loads(line) for line in scripts["rows"].split("\n")] == lines_of(path)
    index = json.loads(scripts["index"])
    assert index[:2] == [[0, "</script><b>1 + 1", [1.0, 0.5]], [0, "__ROWS__ of text", [0.0]]] and len(index) == 6
    assert "prefers-color-scheme: dark" in text and not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    if (node := shutil.which("node")) is not None:
        program = tmp_path / "page.js"
        program.write_text(scripts["program"])
        subprocess.run([node, "--check", str(program)], check=True, timeout=60)


def test_a_file_that_is_no_sinks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2}\n{"step": 2}\n')
    with pytest.raises(ValueError, match="is no row of"):
        rollout_page(path)
    assert main(["rollouts", str(tmp_path / "none")]) == 2 and "none" in capsys.readouterr().err
    RolloutSink(path).log(rollouts(), step=0)
    with path.open("a") as file:
        file.write('{"step": 4, "prom')  # a run that is at work
    assert main(["rollouts", str(path)]) == 0
    assert len(json.loads(Scripts(path.with_suffix(".html").read_text()).found["index"])) == 2


@pytest.mark.skipif(shutil.which("chromium") is None, reason="a browser, which a machine may not have")
def test_a_browser_shows_the_rows_and_the_first_ones_tokens(tmp_path: Path) -> None:
    path, page = tmp_path / "rollouts.jsonl", tmp_path / "page.html"
    sink = RolloutSink(path)
    for step in range(2):
        sink.log(rollouts(), step=step)
    assert main(["rollouts", str(path), "--out", str(page)]) == 0
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "mean reward from 0.375 at step 0 to 0.375 at step 1" in shown
    assert shown.count('<button class="entry') == 4 and "user: &lt;/script&gt;&lt;b&gt;1 + 1" in shown
    assert re.search(r'<span title="text: 4\nmask: 1\nlogprobs: -2[^>]*style="background: ', shown)
