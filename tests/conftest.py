"""Which tests start processes that work together: those of twinkle-ray, and of the examples."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# A shell starts jobs in its background deaf to Ctrl-C, and programs of tests that are interrupted would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Ray's workers stand back behind every other process, and beside the other tests twelve of them came to a halt; but
# not by as much as they would, or other clusters' agents do not start in their time.
os.environ.setdefault("RAY_worker_niceness", "5")
TOGETHER = (HERE / "ray", HERE / "examples")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder, before `-m` selects; long files come first."""
    for item in items:
        if any(folder in item.path.parents for folder in TOGETHER):
            item.add_marker(pytest.mark.processes)
    items.sort(
        key=lambda item: item.get_closest_marker("long") is None
    )  # no process is left with one of them at the end
