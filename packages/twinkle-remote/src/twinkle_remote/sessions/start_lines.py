"""Steps of a session's start, reported on a terminal; where nobody looks, nothing is reported."""

from __future__ import annotations

import sys


def report_start(text: str) -> None:
    """Print a line on standard error, if that is a terminal.

    Args:
        text: What begins or has been done.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"twinkle: {text}", file=sys.stderr, flush=True)
