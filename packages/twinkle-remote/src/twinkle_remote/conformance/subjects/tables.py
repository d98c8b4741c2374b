"""Components whose functions read, add and balance columns."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from twinkle_remote.component.decorators import remote_class, remote_function
from twinkle_remote.errors import UnreadColumnError

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

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids", adds="score")
    def grade(self, rows: dict[str, Any], by: int = 2) -> dict[str, Any]:
        """The rows with a score; what else is changed is not kept."""
        return {**rows, "score": [by * one for one in rows["ids"]], "ids": [0] * len(rows["ids"])}

    @remote_function(dispatch="slice_dp", collect="flatten", adds=lambda name: name, balance=out_of_order)
    async def annotate(self, rows: dict[str, Any], name: str) -> dict[str, Any]:
        """The rows with a column of any name."""
        return {**rows, name: [one + 1 for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten", reads=("ids", "score"))
    def pairs(self, rows: dict[str, Any]) -> list[Any]:
        """The values of two columns, and whether the wide one is there."""
        return [(one, score, "wide" in rows) for one, score in zip(rows["ids"], rows["score"], strict=True)]

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids")
    def peek(self, rows: dict[str, Any]) -> list[Any]:
        """A column that the function does not read."""
        return list(rows["wide"])

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids")
    def asks(self, rows: dict[str, Any]) -> list[str]:
        """The uses of a column that the function does not read, one letter for each that is an error."""
        column: Any = rows.get("wide")
        ways = ""
        for use in (len, list, bool, str, hash):
            try:
                use(column)
            except UnreadColumnError:
                ways += "u"
        return [f"{'wide' in rows} {column is None} {ways}"] * len(rows["ids"])

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids")
    def of_frame(self, frame: Any) -> list[bool]:
        """Whether a frame has a column that the function does not read."""
        return [frame.get("wide") is not None and "wide" in frame.columns] * len(frame)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def frame(self, rows: list[int]) -> Any:
        """A pandas frame of the rows."""
        return import_module("pandas").DataFrame({"ids": rows, "wide": rows})
