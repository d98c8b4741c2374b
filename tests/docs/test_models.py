"""The programs of the page on models run, one after the other, as a reader would type them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch.distributed as dist

import twinkle

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
@pytest.mark.slow
def test_the_programs_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(programs) >= 8
    try:
        exec(compile("\n".join(programs), str(PAGE), "exec"), {"__name__": "page"})
    finally:
        twinkle.shutdown()
        if dist.is_initialized():
            dist.destroy_process_group()
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert links
    assert all((PAGE.parent / link).exists() for link in links)
