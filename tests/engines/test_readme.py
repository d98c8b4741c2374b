"""The program of the README runs."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "packages/twinkle-engines/README.md"


def test_the_program_of_the_readme_runs() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    exec(compile(program, str(README), "exec"), {"__name__": "page"})
