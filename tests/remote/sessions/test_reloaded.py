"""A module that was loaded again is told of once for each time."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING

from twinkle_remote.sessions.reloaded import ReloadedModules

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_modules_that_were_loaded_again_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("edited_module", "other_module"):
        (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    edited, _ = importlib.import_module("edited_module"), importlib.import_module("other_module")
    looked = ReloadedModules()
    with caplog.at_level(logging.WARNING, "twinkle.remote"):
        looked.look()
        looked.look()
        assert not caplog.records
        importlib.reload(edited)
        importlib.reload(sys.modules["json"])  # installed: nobody edits it
        looked.look()
        looked.look()
    (record,) = caplog.records
    assert "edited_module" in record.getMessage() and "other_module" not in record.getMessage()
