"""Components whose functions take columns of rows, and balance them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote import remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Sequence


def out_of_order(costs: Sequence[float]) -> list[float]:
    """Costs that put the rows of all ranks out of their order."""
    return [(7 * row * row + 3) % 11 for row in range(len(costs))]


@remote_class()
class Ledger:
    """Makes rows with columns, and looks at some of them."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int], width: int = 1000) -> dict[str, Any]:
        """A narrow column, a wide one, and a note."""
        return {"ids": rows, "wide": [bytes([row % 256]) * width for row in rows], "note": "same"}

    @remote_function(dispatch="slice_dp", collect="flatten", balance=out_of_order)
    def balanced(self, rows: Any) -> Any:
        """Identity."""
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rows: dict[str, Any], by: int = 2) -> dict[str, Any]:
        """A score for each row."""
        return {"score": [by * one for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten", balance=out_of_order)
    async def annotate(self, rows: dict[str, Any], name: str) -> dict[str, Any]:
        """The rows with a column of any name."""
        return {**rows, name: [one + 1 for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def pairs(self, rows: dict[str, Any]) -> list[Any]:
        """The values of two columns, and whether the wide one is there."""
        return [(one, score, "wide" in rows) for one, score in zip(rows["ids"], rows["score"], strict=True)]
