"""The message of an example where a library is missing."""

from __future__ import annotations

import sys
from pathlib import Path


def without(library: str | None) -> str:
    """The line that names the library and what brings it."""
    return (
        f"{Path(sys.argv[0]).name} needs {library}, of the extra demo: pip install '.[demo]' in the checkout brings it"
    )
