"""Rows of rollouts, for dispatch, collect and tables."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.padding import TRUNCATED

if TYPE_CHECKING:
    from collections.abc import Sequence

OTHERS = ("prompts", "completions", "finish", "temperatures", TRUNCATED)
"""The columns of rollouts that are not by token and have names of their own."""


class RolloutsSplitter:
    """Cuts and joins rollouts by rows, for dispatch and collect."""

    def length(self, value: Any) -> int:
        """Number of rows."""
        return len(value)

    def slice(self, value: Any, start: int, stop: int) -> Any:
        """Rows [start, stop), as views."""
        return value[start:stop]

    def take(self, value: Any, rows: Sequence[int]) -> Any:
        """Rows of these numbers, as copies."""
        return value[list(rows)]

    def costs(self, value: Any) -> Sequence[float]:
        """The tokens of each row, prompts included."""
        lengths = iter(value.lengths)
        return [float(sum(islice(lengths, count))) for count in value.counts]

    def columns(self, value: Any) -> Sequence[str]:
        """The columns by token, by sequence and by row; `counts` is no column, and is always there."""
        return [*value.tokens, *(name for name in OTHERS if getattr(value, name) is not None), *value.columns]

    def select(self, value: Any, names: Sequence[Any]) -> Any:
        """The same rows with these columns; `ids` and `counts` stay."""
        return value.select(names)

    def join(self, values: Sequence[Any]) -> Any:
        """The columns of all rollouts of the same sequences."""
        return values[0].join(values)

    def concat(self, values: Sequence[Any]) -> Any:
        """All rows, one after the other."""
        return values[0].concat(values)

    def equal(self, left: object, right: object) -> bool:
        """Whether two rollouts are equal as wholes."""
        return left == right

    def reduce(self, how: str, values: Sequence[Any], weights: Sequence[float] | None) -> Any:
        """Refuse the sum and the mean.

        Raises:
            TypeError: Always: rows of different prompts are not added up.
        """
        raise TypeError(
            f"rollouts are rows of different prompts, which have no {how}: collect them with 'flatten', or return "
            "numbers, such as rollouts.sequence_rewards().mean()"
        )
