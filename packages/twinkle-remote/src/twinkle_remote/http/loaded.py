"""Classes that this process has loaded, by name: they are looked up, never imported."""

from __future__ import annotations

import sys
from typing import Any

from twinkle_remote.http.nodes import own_error_type
from twinkle_remote.http.registered import registered_component
from twinkle_remote.protocol.component import is_component_type


def loaded_error_type(name: str) -> type | None:
    """A class of exceptions; None if it is not loaded."""
    found = own_error_type(name) or _loaded(name)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def loaded_component_type(name: str) -> type | None:
    """A remote class; None if it is not loaded."""
    found = registered_component(name) or _loaded(name)
    return found if isinstance(found, type) and is_component_type(found) else None


def _loaded(name: str) -> Any:
    parts = name.split(".")
    for at in range(len(parts) - 1, -1, -1):
        module = sys.modules.get(".".join(parts[:at]) or "__main__")
        if module is not None:
            found: Any = module
            for part in parts[at:]:
                found = vars(found).get(part) if hasattr(found, "__dict__") else None
            return found
    return None
