"""Rollouts: what a model wrote to prompts, in ragged columns by token, by sequence and by row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from twinkle_engines.batches.columns import (
    KNOWN,
    ROWS,
    TEMPERATURES,
    Padded,
    Side,
    alone,
    by_token,
    check,
    concat,
    count,
    cut,
    equal,
    fit,
    names_of,
    packed,
    padded,
    row_numbers,
    shown,
    stored,
)
from twinkle_remote import register_type
from twinkle_remote.rows import register_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twinkle_engines.batches.columns import By


@dataclass(init=False, repr=False, eq=False, frozen=True)
class Rollouts:
    """Sequences of tokens, in rows: a row is a prompt with the `counts[i]` sequences that were made of it.

    It is a value: operations return new ones, which share memory with it. It has rows for `slice_dp` and "flatten", and
    for `twinkle.take`, `concat`, `join` and `select`; ids and counts are in what is selected.
    Invariant, which the constructor enforces: each column has an entry for each of its tokens, sequences or rows. Each
    column is also an attribute by its name, such as `logprobs`: a list with an entry for each sequence, or row.

    Attributes:
        tokens: Each column by token, of all sequences one after the other: any value with as many rows.
        sequences: Each column by sequence: `completions` (texts), `finish` ("stop" or "length"), `temperatures` (at
            which each was drawn; greedy: 1), and others.
        rows: Each column by row: `prompts`, and others.
        lengths: Tokens of each sequence, at or above 0.
        counts: Sequences of each row, at or above 0.
    """

    tokens: dict[str, Any]
    sequences: dict[str, Any]
    rows: dict[str, Any]
    lengths: list[int]
    counts: list[int]

    if TYPE_CHECKING:
        mask: list[Tensor] | None
        logprobs: list[Tensor] | None
        ref_logprobs: list[Tensor] | None
        rewards: list[Tensor] | None
        advantages: list[Tensor] | None
        versions: list[Tensor] | None
        values: list[Tensor] | None
        returns: list[Tensor] | None
        proximal: list[Tensor] | None
        teacher: list[Tensor] | None
        completions: list[Any] | None
        finish: list[str] | None
        temperatures: list[float] | None
        prompts: list[Any] | None

    def __init__(
        self,
        ids: Sequence[Any],
        mask: Sequence[Any] | None = None,
        *,
        logprobs: Sequence[Any] | None = None,
        temperatures: Sequence[float] | None = None,
        ref_logprobs: Sequence[Any] | None = None,
        rewards: Sequence[Any] | None = None,
        advantages: Sequence[Any] | None = None,
        versions: Sequence[Any] | None = None,
        counts: Sequence[int] | None = None,
        columns: Mapping[str, Any] | None = None,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] | None = None,
        finish: Sequence[str] | None = None,
        values: Sequence[Any] | None = None,
        returns: Sequence[Any] | None = None,
        proximal: Sequence[Any] | None = None,
        teacher: Sequence[Any] | None = None,
    ) -> None:
        """Make rollouts of columns, which are copied; tensors keep their device. `with_column` adds others.

        Args:
            ids: The tokens of each sequence, prompt included: 1-D tensors, arrays or lists.
            mask: As long as the ids: true where the model wrote the token and it counts. None counts every token.
            logprobs: As long as the ids, of the model that wrote them, 0 where it wrote nothing.
            temperatures: One a sequence, above 0: that at which it was drawn (greedy: 1), to which `logprobs` belong.
                A `TransformersModel` divides its logits by it. None is 1.
            ref_logprobs: The same of a reference model.
            rewards: As long as the ids; or one number a sequence, which then stands at its last token.
            advantages: As long as the ids; or one number a sequence, which then stands at each token.
            versions: Version of the weights that wrote each token; or one a sequence.
            counts: Sequences of each row; None for one sequence in each row.
            columns: Further columns by row, by name.
            prompts: One a row.
            completions: One a sequence.
            finish: One a sequence, "stop" or "length".
            values: As long as the ids, of a critic.
            returns: As long as the ids: what a critic is to predict.
            proximal: Log-probabilities of the policy before its steps on this batch.
            teacher: Those of a teacher.

        Raises:
            ValueError: Lengths disagree, a mask has other numbers than 0 and 1, or a temperature is not above 0.
        """
        lengths = [len(sequence) for sequence in ids]
        empty = self._fill({}, {}, {}, lengths, [1] * len(lengths) if counts is None else [int(one) for one in counts])
        arguments = locals()
        given = {name: (by, arguments[name]) for name, by in KNOWN.items() if arguments[name] is not None}
        vars(self).update(vars(empty._with({**given, **_by_row(columns or {})})))

    @staticmethod
    def built(*fields: Any) -> Rollouts:
        """Rollouts of the values of all fields, which are not looked at."""
        return object.__new__(Rollouts)._fill(*fields)

    def _fill(self, *values: Any) -> Rollouts:
        for name, value in zip(Rollouts.__dataclass_fields__, values, strict=True):
            object.__setattr__(self, name, value)
        return self

    def _with(self, given: Mapping[str, tuple[By, Any]]) -> Rollouts:
        """The same with other columns, by what has an entry in each; None takes one off."""
        places: dict[str, dict[str, Any]] = {
            by: {name: column for name, column in columns.items() if name not in given}
            for by, columns in (("token", self.tokens), ("sequence", self.sequences), ("row", self.rows))
        }
        for name, (by, values) in given.items():
            if values is None:
                continue
            if by == "token":
                places[by][name] = by_token(name, values, self.lengths)
                continue
            column = [float(one) for one in values] if name == TEMPERATURES else stored(values)
            size = len(self.lengths if by == "sequence" else self.counts)
            if count(column) != size:
                raise ValueError(f"{name} has {count(column)} entries, but there are {size} {by}s: one for each")
            places[by][name] = column
        made = Rollouts.built(*places.values(), self.lengths, self.counts)
        check(made)
        return made

    def __getattr__(self, name: str) -> Any:
        if name not in KNOWN:
            raise AttributeError(f"Rollouts have no attribute {name!r}: column() reads any column")
        return self.column(name) if name in names_of(self) else None

    @property
    def ids(self) -> list[Tensor]:
        """The tokens of each sequence."""
        return list(torch.split(self.tokens["ids"], self.lengths))

    @property
    def columns(self) -> dict[str, Any]:
        """The further columns by row, without the prompts."""
        return {name: column for name, column in self.rows.items() if name != "prompts"}

    def column(self, name: str) -> list[Any]:
        """A column by its name: a list with an entry for each sequence (by token: its values), or for each row.

        Raises:
            KeyError: There is no such column; the error names those that are there.
        """
        if name in self.tokens:
            if isinstance(values := self.tokens[name], Tensor):
                return list(torch.split(values, self.lengths))
            ends = [0, *accumulate(self.lengths)]
            return [cut(values, start, stop) for start, stop in pairwise(ends)]
        for found in (self.sequences, self.rows):
            if name in found:
                column = found[name]
                is_plain = isinstance(column, list | Tensor | np.ndarray)
                return list(column) if is_plain else [cut(column, i, i + 1) for i in range(count(column) or 0)]
        raise KeyError(f"there is no column {name!r}, but {', '.join(names_of(self))}")

    def with_column(self, name: str, values: Any, by: By = "token") -> Rollouts:
        """The same rollouts with one more column, which goes where its rows go; one of that name gives way.

        Args:
            name: Its name.
            values: By token: for each sequence a value with as many rows as it has tokens, such as a tensor [tokens,
                ...] or a list. By sequence and by row: a value with as many rows as there are sequences, or rows.
            by: What has an entry in it: "token", "sequence" or "row".

        Raises:
            ValueError: Lengths disagree, the name is that of a known column with other entries, or `by` is another
                word.
        """
        if by not in ("token", "sequence", "row") or KNOWN.get(name, by) != by:
            raise ValueError(
                f"the column {name!r} has an entry by {KNOWN.get(name, 'token, sequence or row')}, not {by!r}"
            )
        return self._with({name: (by, values)})

    def replace(self, **columns: Any) -> Rollouts:
        """The same rollouts with other columns; None takes a column off. Arguments as for the constructor.

        Raises:
            TypeError: A name is none of the known ones: `with_column` takes others.
            ValueError: Lengths disagree.
        """
        given = dict(columns)
        if strange := given.keys() - {*KNOWN, "counts", "columns"}:
            raise TypeError(f"replace() takes the known columns, and {min(strange)!r} is none: use with_column()")
        ids, rows, counts = given.get("ids"), given.pop("columns", self.columns), given.pop("counts", None)
        lengths = self.lengths if ids is None else [len(one) for one in ids]
        numbers = self.counts if counts is None else [int(one) for one in counts]
        kept = {name: column for name, column in self.rows.items() if name in KNOWN}
        made = Rollouts.built(self.tokens, self.sequences, kept, lengths, numbers)
        return made._with({**{name: (KNOWN[name], one) for name, one in given.items()}, **_by_row(rows or {})})

    @cached_property
    def starts(self) -> tuple[list[int], list[int]]:
        """The first sequence of each row, and the first token of each sequence, with the ends of the last ones."""
        return [0, *accumulate(self.counts)], [0, *accumulate(self.lengths)]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.counts)

    def __getitem__(self, key: int | slice | Sequence[int]) -> Rollouts:
        """Rows: of a slice as views, of a list of row numbers as copies, of one number as rollouts of one row.

        Raises:
            IndexError: There is no such row.
            TypeError: It is no number; a flag is none, because True would be the row 1.
        """
        if isinstance(key, slice):
            chosen = range(len(self))[key]
            whole = chosen.step == 1
            return self._rows(chosen.start, max(chosen.start, chosen.stop)) if whole else self[list(chosen)]
        rows, is_one = row_numbers(key, len(self))
        if is_one:
            return self._rows(rows[0], rows[0] + 1)
        return concat([self._rows(row, row + 1) for row in rows]) if rows else self[:0]

    def __iter__(self) -> Iterator[Rollouts]:
        """Each row, as rollouts of one row."""
        return (self._rows(row, row + 1) for row in range(len(self)))

    def _rows(self, start: int, stop: int) -> Rollouts:
        sequences, tokens = self.starts
        first, last = sequences[start], sequences[stop]
        begin, end = tokens[first], tokens[last]
        return Rollouts.built(
            {name: cut(column, begin, end) for name, column in self.tokens.items()},
            {name: cut(column, first, last) for name, column in self.sequences.items()},
            {name: cut(column, start, stop) for name, column in self.rows.items()},
            self.lengths[first:last],
            self.counts[start:stop],
        )

    def pad(self, side: Side = "right", pad_id: int = 0) -> Padded:
        """Every column as a rectangle [sequences, longest, ...], 0 where there is no token (a temperature: 1).

        Args:
            side: Where the padding is, "left" or "right".
            pad_id: Stands in `input_ids` where there is no token.

        Returns:
            `input_ids`, `attention_mask`, `position_ids` (0 at each first token), and the other columns by name: those
            by sequence and by row with an entry for each sequence. What is no numbers is a list by sequence.
        """
        made = padded(self, range(len(self.lengths)), side, pad_id)
        return {**made, "position_ids": (made["attention_mask"].cumsum(1) - 1).clamp(min=0) * made["attention_mask"]}

    def pack(self, length: int) -> list[Padded]:
        """All sequences in few mappings of at most `length` tokens, each of the shape [1, tokens] without padding.

        Returns:
            `input_ids`, `position_ids` (0 at each first token), `sequence_ids` (which sequence a token belongs to), and
            the other columns by name, as of `pad`. There is no attention mask: Transformers reads the borders off the
            positions.

        Raises:
            ValueError: A sequence is longer than that.
        """
        return [packed(self, pack) for pack in fit(self.lengths, length)]

    def sequence_rewards(self) -> Tensor:
        """The reward of each sequence, the sum over its tokens: [sequences].

        Raises:
            ValueError: There are no rewards.
        """
        if (rewards := self.rewards) is None:
            raise ValueError("these rollouts have no rewards: grade them first, or replace(rewards=...)")
        return torch.stack([reward.sum() for reward in rewards]) if rewards else self.tokens["rewards"]

    def groups(self) -> list[range]:
        """The sequences of each row."""
        return [range(end - size, end) for size, end in zip(self.counts, accumulate(self.counts), strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        # a view is pickled with the whole memory that it is a view of
        fields = {name: getattr(self, name) for name in Rollouts.__dataclass_fields__}
        for name in ("tokens", "sequences", "rows"):
            fields[name] = {key: alone(column) for key, column in fields[name].items()}
        return fields

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._fill(*[state[name] for name in Rollouts.__dataclass_fields__])
        check(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Rollouts:
        """Rollouts of the values of all fields by name, as they travel over HTTP."""
        made = object.__new__(cls)
        made.__setstate__(state)
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rollouts):
            return NotImplemented
        return all(equal(getattr(self, name), getattr(other, name)) for name in Rollouts.__dataclass_fields__)

    __hash__ = None  # type: ignore[assignment]  # as every value that is compared by tensors

    def __repr__(self) -> str:
        return shown(self)


def _by_row(columns: Mapping[str, Any]) -> dict[str, tuple[By, Any]]:
    """Further columns by row, of `columns=`."""
    if hidden := [name for name in columns if name in KNOWN]:
        raise ValueError(f"columns= has {hidden[0]}, which is a column of its own: use {hidden[0]}=")
    return {name: ("row", one) for name, one in columns.items()}


register_type(Rollouts, to_plain=Rollouts.__getstate__, from_plain=Rollouts.from_state)
register_rows(Rollouts, **ROWS)
