"""Text of other processes, made safe for a terminal: no control sequence is left in it."""

from __future__ import annotations

import re

_STYLES = re.compile(r"\x1b\[[0-9;:]*m")  # colours, without which the text is the same
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(line: str) -> str:
    """Return a line without colours and overwritten parts of progress bars, with control characters spelled out.

    Args:
        line: One line, of whatever a process wrote.
    """
    shown = [part for part in _STYLES.sub("", line).split("\r") if part]
    return _CONTROLS.sub(_spelled, shown[-1] if shown else "")


def _spelled(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
