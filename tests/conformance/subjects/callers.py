"""A component whose methods call others and do not wait for them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from twinkle_remote import get, remote_class, remote_function, submit


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
        time.sleep(seconds)
        Path(path).touch()

    @remote_function(dispatch="all", collect="first")
    def lets_fail(self, other: Caller) -> None:
        submit(other.raises)

    @remote_function(dispatch="all", collect="first")
    async def lets_fail_later(self, other: Caller) -> None:
        submit(other.raises)

    @remote_function(dispatch="all", collect="first")
    def raises(self) -> None:
        raise KeyError("unseen")

    @remote_function(dispatch="all", collect="first")
    def waits_for_itself(self, itself: Caller, other: Caller, way: str) -> Any:
        """Wait for a call that this rank would run later: of its own, over another component, or behind it."""
        if way == "own":
            return get(submit(itself.value, 1))
        if way == "many":
            return get([submit(other.value, 1), submit(itself.value, 1)])
        if way == "argument":
            return get(submit(other.value, submit(itself.value, 1).hand_over()))
        return get(submit(itself.later, 1))

    @remote_function(dispatch="all", collect="first")
    def waits_for_another(self, other: Caller) -> int:
        return get(submit(other.value, submit(other.later, 1).hand_over()))

    @remote_function(dispatch="all", collect="first")
    def value(self, number: int) -> int:
        return number

    @remote_function(dispatch="all", collect="first")
    async def later(self, number: int) -> int:
        return number

    @remote_function(dispatch="all", collect="first")
    async def awaits_itself(self, itself: Caller) -> int:
        """Await a `def` method of the own rank, which has its turn meanwhile."""
        return await submit(itself.value, 3)
