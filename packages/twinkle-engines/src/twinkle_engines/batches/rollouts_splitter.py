"""Rows of rollouts, for dispatch, collect and tables."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from twinkle_engines.batches.columns import BY_TOKEN
from twinkle_engines.batches.padding import TRUNCATED
from twinkle_remote.values import LeftOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")
OTHERS = ("prompts", "completions", "finish", "temperatures", TRUNCATED)
"""The columns of rollouts that are not by token and have names of their own."""


def leave_out(value: T, marks: Mapping[Any, LeftOut]) -> T:
    """The same rollouts with marks in place of columns that a function does not read; `ids` and `counts` stay."""
    rollouts: Any = value
    by_token, known = (*rollouts.tokens, *BY_TOKEN), (*rollouts.tokens, *BY_TOKEN, *OTHERS)
    of_tokens = {name: mark for name, mark in marks.items() if name in by_token and name != "ids"}
    own = {name: mark for name, mark in marks.items() if name not in known}
    others = {name: mark for name, mark in marks.items() if name in OTHERS}
    return _with(value, tokens={**rollouts.tokens, **of_tokens}, columns={**rollouts.columns, **own}, **others)


def are_same_sequences(one: Any, other: Any) -> bool:
    """Whether rollouts have the same sequences; those of columns that were added have no ids, and are as long."""
    if one.counts != other.counts or one.lengths != other.lengths:
        return False
    ids = other.tokens.get("ids")
    return ids is None or torch.equal(ids, one.tokens["ids"])


def _with(value: T, **fields: Any) -> T:
    """The same rollouts with other fields."""
    twin = object.__new__(type(value))
    for name in cast("Any", value).__dataclass_fields__:
        object.__setattr__(twin, name, fields[name] if name in fields else getattr(value, name))
    return twin


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

    def sizes(self, value: Any) -> Mapping[Any, int]:
        """The bytes of each column that is a tensor; of texts and lists 0."""
        found = {**value.tokens, **value.columns, **{name: getattr(value, name) for name in OTHERS}}
        return {name: column.nbytes if isinstance(column, torch.Tensor) else 0 for name, column in found.items()}

    def select(self, value: Any, names: Sequence[Any]) -> Any:
        """The same rows with these columns; `ids` and `counts` stay."""
        return value.select(names)

    def added(self, value: Any, names: Sequence[Any]) -> Any:
        """These columns for `join` with the same sequences: without `ids`."""
        some = value.select(names)
        return _with(some, tokens={name: column for name, column in some.tokens.items() if name in names})

    def leave_out(self, value: Any, marks: Mapping[Any, LeftOut]) -> Any:
        """The same rows with marks in place of columns; `ids` and `counts` stay."""
        return leave_out(value, marks)

    def marks(self, value: Any) -> Sequence[LeftOut]:
        """The marks that stand in place of columns."""
        own = [*value.tokens.values(), *value.columns.values(), *(getattr(value, name) for name in OTHERS)]
        return [one for one in own if isinstance(one, LeftOut)]

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
