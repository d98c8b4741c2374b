"""The stages of streams."""

from __future__ import annotations

import time
from pathlib import Path

from twinkle_remote import current_worker, remote_class, remote_function


@remote_class()
class Stages:
    """Stages that remember what they were given.

    Args:
        gate: A file; `gated` waits for it when it is given row 0.
    """

    def __init__(self, gate: str = "") -> None:
        self.gate = Path(gate)
        self.given: list[list[int]] = []

    @remote_function(dispatch="slice_dp", collect="flatten")
    def tenfold(self, rows: list[int]) -> list[int]:
        """Ten times each row."""
        self.given.append(list(rows))
        return [10 * row for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def gated(self, rows: list[int]) -> list[int]:
        """Each row; row 0 takes until the gate is open."""
        if 0 in rows:
            until = time.monotonic() + 60.0
            while not self.gate.exists() and time.monotonic() < until:
                time.sleep(0.002)
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def later(self, rows: list[int]) -> list[int]:
        """Ten times each row, by a coroutine."""
        return [10 * row for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten", timeout=0.5)
    def late(self, rows: list[int]) -> list[int]:
        """The same with a deadline; the second attempt finds the gate open."""
        if 0 in rows and not self.gate.exists():
            self.gate.touch()
            time.sleep(1.5)
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def poisoned(self, rows: list[int]) -> list[int]:
        """Raises for row 13."""
        if 13 in rows:
            raise ValueError("thirteen is poison")
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def broken(self, rows: list[int]) -> list[int]:
        """Raises for every row."""
        raise ValueError("nothing works")

    @remote_function(dispatch="slice_dp", collect="flatten")
    def doubled(self, rows: list[int]) -> list[int]:
        """Two rows for each, as a stage must not."""
        return [*rows, *rows]

    @remote_function(dispatch="all", collect="none", lazy_collect=False)
    def calls(self) -> tuple[int, list[list[int]]]:
        """The rank, and what it was given in each call."""
        return current_worker().rank or 0, self.given
