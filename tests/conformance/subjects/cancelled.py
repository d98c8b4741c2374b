"""A component whose calls take long, and which reports what has run."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from twinkle_remote import remote_class, remote_function


@remote_class(concurrency=1)
class Slow:
    """One async call at a time."""

    def __init__(self) -> None:
        self._ran: list[str] = []

    @remote_function(dispatch="all", collect="first")
    def sleeps(self, seconds: float) -> str:
        self._ran.append(f"def {seconds}")
        time.sleep(seconds)
        return "slept"

    @remote_function(dispatch="all", collect="first")
    async def dreams(self, seconds: float) -> str:
        """Wait, and report if that is cancelled."""
        self._ran.append(f"async {seconds}")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self._ran.append("cancelled")
            raise
        return "dreamt"

    @remote_function(dispatch="all", collect="first")
    def uses(self, value: Any) -> Any:
        self._ran.append("use")
        return value

    @remote_function(dispatch="all", collect="first")
    def ran(self) -> list[str]:
        return list(self._ran)
