"""The programs of the README and of the page on data loading run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["packages/twinkle-data/README.md", "docs/data.md"])
def test_the_programs_of_a_page_run(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(programs) >= 2
    # The blocks of a page follow one another, as a reader would type them.
    exec(compile("\n".join(programs), page, "exec"), {"__name__": "page"})
