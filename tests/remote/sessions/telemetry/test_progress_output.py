"""Where a bar is shown, and where lines are."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from tqdm import tqdm

from twinkle_remote.sessions.telemetry.progress_output import bar_class, in_notebook

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_a_file_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bar_class() is None and not in_notebook()
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert bar_class() is tqdm and not in_notebook()
