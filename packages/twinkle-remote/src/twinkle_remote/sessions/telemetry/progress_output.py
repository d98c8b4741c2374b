"""Where progress is shown: as a bar on a terminal and in a notebook, as lines elsewhere."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

LINE_SECONDS = 10.0
"""Between two lines of progress, where a bar would fill a file with carriage returns."""


def in_notebook() -> bool:
    """Whether the standard error is shown below a cell of a notebook."""
    return type(sys.stderr).__module__.startswith("ipykernel.")


def bar_class() -> Any:
    """The class of tqdm's bars for the standard error; None where lines suit better.

    Raises:
        ImportError: A bar suits, and tqdm is not installed.
    """
    if sys.stderr is None or not (in_notebook() or sys.stderr.isatty()):
        return None
    try:
        if in_notebook() and find_spec("ipywidgets") is not None:
            from tqdm.notebook import tqdm as widget

            return widget
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    return tqdm


def report_start(text: str) -> None:
    """Print a step of a session's start on standard error, if that is a terminal.

    Args:
        text: What begins or has been done.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"twinkle: {text}", file=sys.stderr, flush=True)
