"""A component whose methods call others and do not wait for them."""

from __future__ import annotations

import time
from pathlib import Path

from twinkle_remote.call.submit import submit
from twinkle_remote.component.decorators import remote_class, remote_function


@remote_class()
class Caller:
    """Calls another of its kind."""

    @remote_function(dispatch="all", collect="first")
    def passes_on(self, others: list[Caller], path: str, seconds: float) -> None:
        """Let the last of some components touch a file, each called by the one before, after so many seconds each."""
        time.sleep(seconds)
        first, *rest = others
        if rest:
            submit(first.passes_on, rest, path, seconds)
        else:
            submit(first.touches, path, seconds)

    @remote_function(dispatch="all", collect="first")
    def touches(self, path: str, seconds: float) -> None:
        """Touch a file after so many seconds."""
        time.sleep(seconds)
        Path(path).touch()

    @remote_function(dispatch="all", collect="first")
    def lets_fail(self, other: Caller) -> None:
        """Call what raises."""
        submit(other.raises)

    @remote_function(dispatch="all", collect="first")
    def raises(self) -> None:
        """Raise."""
        raise KeyError("unseen")
