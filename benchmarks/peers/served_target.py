"""The component that `served.py` serves: the module is not loaded in Serve's environment."""

from __future__ import annotations

from typing import Any

from twinkle_remote import remote_class, remote_function


@remote_class()
class Target:
    """Takes what comes."""

    @remote_function(dispatch="all", collect="first")
    def nothing(self) -> None:
        """An empty call."""

    @remote_function(dispatch="all", collect="first")
    def takes(self, array: Any) -> int:
        """Takes an array."""
        return len(array)
