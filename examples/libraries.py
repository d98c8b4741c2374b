"""The message of an example for a missing library."""

from __future__ import annotations

import sys
from pathlib import Path


def without(library: str | None) -> str:
    """The line that names the library and how to install it."""
    return (
        f"{Path(sys.argv[0]).name} needs {library}, of the extra demo: pip install '.[demo]' in the checkout brings it"
    )
