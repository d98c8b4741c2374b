"""Lines of a session's start on a terminal. Short: one function, which backends of other packages call too."""

from __future__ import annotations

import sys


def report_start(text: str) -> None:
    """Print a step of a session's start on standard error, if that is a terminal.

    Args:
        text: What begins or has been done.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"twinkle: {text}", file=sys.stderr, flush=True)
