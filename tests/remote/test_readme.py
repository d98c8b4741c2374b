"""The README's program runs and prints what is shown."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[2] / "packages" / "twinkle-remote" / "README.md"


def test_the_readme_runs_and_prints_what_it_shows() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    [program] = [body for language, body in blocks if language == "python"]
    shown = [body for language, body in blocks if not language][-1]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, str(README), "exec"), {"__name__": "readme"})
    assert printed.getvalue().rstrip() == shown.rstrip()
