"""One line of the doctor's report."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        what: What was checked.
        found: What was found.
        remedy: What to do; empty when all is well.
    """

    what: str
    found: str
    remedy: str = ""
