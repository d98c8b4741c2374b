"""The README's programs run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

README = Path(__file__).parents[2] / "packages" / "twinkle-ray" / "README.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == 2


@pytest.mark.ray
@pytest.mark.parametrize("source", PROGRAMS, ids=["call", "weights"])
def test_a_program_runs(joined_program: Callable[..., Any], source: str) -> None:
    running = joined_program(source)
    printed = running.finish(100).splitlines()
    assert [line for line in printed if not line.startswith("twinkle: workers ready: ")] == []  # of a slow start
    assert running.left_over(10) == []
