"""Rollouts: what a model wrote to prompts, in ragged columns by token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Unpack, overload

import torch

from twinkle_engines.batches.columns import (
    BY_TOKEN,
    alike,
    alone,
    by_sequence,
    chain,
    check_alike,
    counts_of,
    entries_of,
    further_columns,
    is_missing,
    join_columns,
    join_flags,
    join_further,
    join_tokens,
    known_columns,
    take_state,
    temperatures_of,
    truncated_flags,
    without_marks,
)
from twinkle_engines.batches.description import rows, sizes
from twinkle_engines.batches.given import each, instance, listed, row_numbers
from twinkle_engines.batches.padding import (
    TEMPERATURES,
    TRUNCATED,
    Side,
    pack_columns,
    pad_columns,
    spread,
    unpack_columns,
    unpad_columns,
)
from twinkle_engines.batches.rollouts_splitter import OTHERS, RolloutsSplitter, are_same_sequences, leave_out
from twinkle_mesh import with_known_names
from twinkle_remote.values import register_splitter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from twinkle_engines.batches.columns import RolloutColumns


@dataclass(init=False, repr=False, eq=False, frozen=True)
class Rollouts:
    """Sequences of tokens, in rows: a row is a prompt with the `counts[i]` sequences that were made of it.

    It is a value: operations return new ones, which share memory with it. It has rows for `slice_dp` and "flatten".

    Attributes:
        tokens: Each column by token, of all sequences one after the other, 1-D.
        lengths: Tokens of each sequence, at or above 0.
        counts: Sequences of each row, at or above 0.
        columns: Further columns, with one entry a row.
        prompts: The prompt of each row, or None.
        completions: The text of each sequence, or None.
        finish: Why each sequence ended, "stop" or "length", or None.
        temperatures: The temperature at which each sequence was drawn (greedy: 1), to which `logprobs` belong; or None.
        truncated_sampling: Whether each was drawn from a part of the tokens (top_k, top_p, min_p); None where none was.
    """

    tokens: dict[str, torch.Tensor]
    lengths: list[int]
    counts: list[int]
    columns: dict[str, list[Any]]
    prompts: list[Any] | None
    completions: list[Any] | None
    finish: list[str] | None
    temperatures: list[float] | None
    truncated_sampling: list[bool] | None

    @with_known_names
    def __init__(
        self,
        ids: Sequence[Any],
        mask: Sequence[Any] | None = None,
        logprobs: Sequence[Any] | None = None,
        temperatures: Sequence[float] | None = None,
        ref_logprobs: Sequence[Any] | None = None,
        rewards: Sequence[Any] | None = None,
        advantages: Sequence[Any] | None = None,
        versions: Sequence[Any] | None = None,
        counts: Sequence[int] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] | None = None,
        finish: Sequence[str] | None = None,
        truncated_sampling: Sequence[bool] | None = None,
    ) -> None:
        """Make rollouts of columns, which are copied; tensors keep their dtype and device.

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
            columns: Further columns by name, with one entry a row.
            prompts: One a row.
            completions: One a sequence.
            finish: One a sequence, "stop" or "length".
            truncated_sampling: One flag a sequence: it was drawn from a part of the tokens. None is False.

        Raises:
            ValueError: Lengths disagree, or a temperature is not above 0.
        """
        given = dict(zip(BY_TOKEN, (ids, mask, logprobs, ref_logprobs, rewards, advantages, versions), strict=True))
        ids = listed("ids", ids, "sequence")
        tokens = {"ids": join_tokens("ids", ids, None)}
        lengths = [len(sequence) for sequence in ids]
        tokens |= {name: join_tokens(name, v, lengths) for name, v in given.items() if v is not None and name != "ids"}
        own = counts_of(counts, len(lengths))
        self._fill(
            tokens,
            lengths,
            own,
            further_columns(columns, len(own)),
            entries_of("prompts", prompts, len(own), "row"),
            entries_of("completions", completions, len(lengths), "sequence"),
            entries_of("finish", finish, len(lengths), "sequence"),
            temperatures_of(entries_of("temperatures", temperatures, len(lengths), "sequence")),
            truncated_flags(truncated_sampling, len(lengths)),
        )

    def _fill(self, *values: Any) -> Rollouts:
        for name, value in zip(Rollouts.__dataclass_fields__, values, strict=True):
            object.__setattr__(self, name, value)
        return self

    @property
    def ids(self) -> list[torch.Tensor]:
        """The tokens of each sequence."""
        return list(torch.split(self.tokens["ids"], self.lengths))

    @property
    def mask(self) -> list[torch.Tensor] | None:
        """For each sequence, the tokens that count: those that the model wrote."""
        return self._column("mask")

    @property
    def logprobs(self) -> list[torch.Tensor] | None:
        """For each sequence, the log-probabilities of the model that wrote it."""
        return self._column("logprobs")

    @property
    def ref_logprobs(self) -> list[torch.Tensor] | None:
        """For each sequence, the log-probabilities of a reference model."""
        return self._column("ref_logprobs")

    @property
    def rewards(self) -> list[torch.Tensor] | None:
        """For each sequence, the reward at each token; their sum is the sequence's."""
        return self._column("rewards")

    @property
    def advantages(self) -> list[torch.Tensor] | None:
        """For each sequence, the advantage of each token."""
        return self._column("advantages")

    @property
    def versions(self) -> list[torch.Tensor] | None:
        """For each sequence, the version of the weights that wrote each token."""
        return self._column("versions")

    def _column(self, name: str) -> list[torch.Tensor] | None:
        return by_sequence(self.tokens.get(name), self.lengths)

    @cached_property
    def _starts(self) -> tuple[list[int], list[int]]:
        """The first sequence of each row, and the first token of each sequence, with the ends of the last ones."""
        return [0, *accumulate(self.counts)], [0, *accumulate(self.lengths)]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.counts)

    @overload
    def __getitem__(self, key: int) -> Rollouts: ...
    @overload
    def __getitem__(self, key: slice) -> Rollouts: ...
    @overload
    def __getitem__(self, key: Sequence[int]) -> Rollouts: ...
    def __getitem__(self, key: int | slice | Sequence[int]) -> Rollouts:
        """Rows: of a slice as views, of a list of row numbers as copies, of one number as rollouts of one row.

        Numbers may be those of numpy and torch too, as `argsort` gives them.

        Raises:
            IndexError: There is no such row.
            TypeError: It is no number; a flag is none, because True would be the row 1.
        """
        if isinstance(key, slice):
            chosen = range(len(self))[key]
            whole = chosen.step == 1
            return self._rows(chosen.start, max(chosen.start, chosen.stop)) if whole else self[list(chosen)]
        rows = row_numbers(key, len(self))
        if isinstance(rows, int):
            return self._rows(rows, rows + 1)
        return Rollouts.concat([self._rows(row, row + 1) for row in rows]) if rows else self[:0]

    def __iter__(self) -> Iterator[Rollouts]:
        """Each row, as rollouts of one row."""
        return (self._rows(row, row + 1) for row in range(len(self)))

    def _rows(self, start: int, stop: int) -> Rollouts:
        sequences, tokens = self._starts
        first, last = sequences[start], sequences[stop]
        begin, end = tokens[first], tokens[last]
        lengths, flags = self.lengths[first:last], self.truncated_sampling
        return object.__new__(Rollouts)._fill(
            {name: values[begin:end] for name, values in self.tokens.items()},
            lengths,
            self.counts[start:stop],
            {name: column[start:stop] for name, column in self.columns.items()},
            None if self.prompts is None else self.prompts[start:stop],
            *[None if one is None else one[first:last] for one in (self.completions, self.finish, self.temperatures)],
            join_flags([None if flags is None else flags[first:last]], [last - first]),
        )

    @staticmethod
    def concat(parts: Iterable[Rollouts]) -> Rollouts:
        """The rows of all parts, one after the other; parts without rows may have other columns.

        A further column (`columns`) that a part has not, as of rows of another source, is None in its rows.

        Raises:
            ValueError: There is no part, or one has a column by token or sequence, or prompts, that another has not.
        """
        every = [instance(Rollouts, "a part", part) for part in each("parts", parts)]
        if not every:
            raise ValueError("no parts: rollouts of no rows take their columns from a part, such as rollouts[:0]")
        used = [part for part in every if len(part)] or every[:1]
        if len(used) == 1:
            return used[0]
        check_alike(
            [[name for name in OTHERS if name != TRUNCATED if getattr(part, name) is not None] for part in used]
        )
        return object.__new__(Rollouts)._fill(
            join_columns([part.tokens for part in used]),
            [n for part in used for n in part.lengths],
            [n for part in used for n in part.counts],
            join_further([part.columns for part in used], list(map(len, used))),
            *[chain([getattr(part, name) for part in used]) for name in _ALIKE],
            join_flags([part.truncated_sampling for part in used], [len(part.lengths) for part in used]),
        )

    def replace(self, **columns: Unpack[RolloutColumns]) -> Rollouts:
        """The same rollouts with other columns; None takes a column off. Arguments as for the constructor.

        Raises:
            ValueError: Lengths disagree.
        """
        given: dict[str, Any] = {name: self._column(name) for name in BY_TOKEN}
        given |= {name: getattr(self, name) for name in ("counts", "columns", *OTHERS)}
        given, marks = without_marks({**given, **columns})
        return leave_out(Rollouts(**given), marks)

    def pad(self, side: Side = "right", pad_id: int = 0) -> dict[str, torch.Tensor]:
        """Every column as a rectangle [sequences, longest], 0 where there is no token (a temperature: 1).

        Args:
            side: Where the padding is, "left" or "right".
            pad_id: Stands in `input_ids` where there is no token.

        Returns:
            `input_ids`, `attention_mask`, `position_ids` (0 at each first token), and the other columns by name.
        """
        return pad_columns(self._by_token(), self.lengths, side, pad_id)

    def unpad(self, mapping: Mapping[str, torch.Tensor]) -> Rollouts:
        """These rollouts with the columns of a mapping such as `pad` makes, which may have further ones.

        Args:
            mapping: `attention_mask`, and columns by token of the same shape.

        Raises:
            ValueError: It is of other sequences.
        """
        return self._with_tokens(unpad_columns(mapping, self.lengths))

    def pack(self, length: int) -> list[dict[str, torch.Tensor]]:
        """All sequences in few mappings of at most `length` tokens, each of the shape [1, tokens] without padding.

        Args:
            length: Tokens of a pack at most.

        Returns:
            `input_ids`, `position_ids` (0 at each first token), `sequence_ids` (which sequence a token belongs to), and
            the other columns by name. There is no attention mask: Transformers reads the borders off the positions.

        Raises:
            ValueError: A sequence is longer than that.
        """
        return pack_columns(self._by_token(), self.lengths, length)

    def unpack(self, mappings: Iterable[Mapping[str, torch.Tensor]]) -> Rollouts:
        """These rollouts with the columns of packs such as `pack` makes, which may have further ones.

        Args:
            mappings: All packs, in any order, each with `position_ids` and `sequence_ids`.

        Raises:
            ValueError: They do not hold each token of these rollouts once.
        """
        return self._with_tokens(unpack_columns(mappings, self.lengths))

    def _by_token(self) -> dict[str, torch.Tensor]:
        """The columns by token, and what is one a sequence and read by token."""
        found, device = dict(self.tokens), self.tokens["ids"].device
        for name, dtype in ((TEMPERATURES, torch.float64), (TRUNCATED, torch.bool)):
            if (each := getattr(self, name)) is not None:
                found[name] = each if is_missing(each) else spread(each, self.lengths, dtype).to(device)
        return found

    def _with_tokens(self, fresh: Mapping[str, torch.Tensor]) -> Rollouts:
        rest = [getattr(self, name) for name in ("lengths", "counts", "columns", *OTHERS)]
        return object.__new__(Rollouts)._fill({**self.tokens, **fresh}, *rest)

    @staticmethod
    def join(parts: Sequence[Rollouts]) -> Rollouts:
        """The columns of all parts, of the same sequences; a later part wins a name. ValueError: of other sequences."""
        first = parts[0]
        for part in parts[1:]:
            if not are_same_sequences(first, part):
                raise ValueError("the rollouts have other sequences: use parts of the same rows, in the same order")
        tokens = {name: column for part in parts for name, column in part.tokens.items()}
        columns = {name: column for part in parts for name, column in part.columns.items()}
        last = [[getattr(part, name) for part in parts if getattr(part, name) is not None] for name in OTHERS]
        rest = [found[-1] if found else None for found in last]
        return object.__new__(Rollouts)._fill(tokens, first.lengths, first.counts, columns, *rest)

    def select(self, names: Collection[object]) -> Rollouts:
        """The same rows with these columns, by token, by sequence or by row; `ids` and `counts` stay.

        Raises:
            ValueError: There is no such column.
        """
        names = known_columns(names, RolloutsSplitter().columns(self))
        tokens = {name: column for name, column in self.tokens.items() if name in names or name == "ids"}
        columns = {name: column for name, column in self.columns.items() if name in names}
        rest = [getattr(self, name) if name in names else None for name in OTHERS]
        return object.__new__(Rollouts)._fill(tokens, self.lengths, self.counts, columns, *rest)

    def sequence_rewards(self) -> torch.Tensor:
        """The reward of each sequence, the sum over its tokens: [sequences].

        Raises:
            ValueError: There are no rewards.
        """
        if (rewards := self.rewards) is None:
            raise ValueError("these rollouts have no rewards: grade them first, or replace(rewards=...)")
        return torch.stack([reward.sum() for reward in rewards]) if rewards else self.tokens["rewards"]

    @property
    def nbytes(self) -> int:
        """Bytes of the columns by token."""
        return sum(values.nbytes for values in self.tokens.values() if not is_missing(values))

    def groups(self) -> list[range]:
        """The sequences of each row."""
        return [range(end - count, end) for count, end in zip(self.counts, accumulate(self.counts), strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        # a view is pickled with the whole memory that it is a view of
        fields = {name: getattr(self, name) for name in Rollouts.__dataclass_fields__}
        return {**fields, "tokens": {name: alone(values) for name, values in self.tokens.items()}}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rollouts):
            return NotImplemented
        return all(alike(getattr(self, name), getattr(other, name)) for name in Rollouts.__dataclass_fields__)

    __setstate__ = take_state
    __hash__ = None  # type: ignore[assignment]  # as every value that is compared by tensors

    def __repr__(self) -> str:
        there = f"columns: {', '.join([*self.tokens, *self.columns])}"
        head = ", ".join([*sizes(self.tokens, self.lengths, self.counts, self.finish), there])
        return "\n".join([f"Rollouts({head})", *rows(self.counts, self.prompts, self.completions)])


_ALIKE = tuple(name for name in OTHERS if name != TRUNCATED)  # which parts have all of them, or none

register_splitter(Rollouts, RolloutsSplitter())
