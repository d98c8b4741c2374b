"""Hosts for the tests of this folder, where the machine allows them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from hosts import why_not


@pytest.fixture(scope="session")
def hosts_here() -> None:
    """Skips where this machine cannot have hosts."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"not run: {reason}")
