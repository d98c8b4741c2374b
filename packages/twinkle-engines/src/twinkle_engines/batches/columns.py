"""Columns by token: 1-D tensors of all sequences one after the other, and the checks of what a caller gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np
import torch

from twinkle_engines.batches.given import by_name, fraction, listed, plain_number, whole
from twinkle_remote.protocol import StoredSlot
from twinkle_remote.values import LeftOut

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BY_TOKEN = ("ids", "mask", "logprobs", "ref_logprobs", "rewards", "advantages", "versions")
_WHOLE_NUMBERS = ("ids", "mask", "versions")
_FROM_ONE_NUMBER = ("rewards", "advantages", "versions")


class RolloutColumns(TypedDict, total=False):
    """The columns that `Rollouts.replace` replaces."""

    ids: Sequence[Any]
    mask: Sequence[Any] | None
    logprobs: Sequence[Any] | None
    temperatures: Sequence[float] | None
    ref_logprobs: Sequence[Any] | None
    rewards: Sequence[Any] | None
    advantages: Sequence[Any] | None
    versions: Sequence[Any] | None
    counts: Sequence[int] | None
    columns: Mapping[str, Sequence[Any]] | None
    prompts: Sequence[Any] | None
    completions: Sequence[Any] | None
    finish: Sequence[str] | None
    truncated_sampling: Sequence[bool] | None


def join_tokens(name: str, sequences: Sequence[Any], lengths: Sequence[int] | None) -> torch.Tensor:
    """The values of a column of all sequences, one after the other.

    Args:
        name: The column.
        sequences: A 1-D tensor, array or list of numbers for each sequence. Rewards, advantages and versions may also
            be one number a sequence: a reward then stands at the last token, the others at every token.
        lengths: Tokens of each sequence; None for the ids themselves.

    Raises:
        ValueError: There is not one entry for each sequence, or one is not as long as its ids.
    """
    given = (
        listed(name, sequences, "sequence") if lengths is None else entries(name, sequences, len(lengths), "sequence")
    )
    parts = [entry(name, value) for value in given]
    if lengths is not None:
        parts = [_spread(name, i, part, n) for i, (part, n) in enumerate(zip(parts, lengths, strict=True))]
    for i, part in enumerate(parts):
        if part.dim() != 1:
            raise ValueError(f"{name}[{i}] has the shape {tuple(part.shape)}: it is a 1-D tensor, one value a token")
    if not parts:
        return torch.empty(0, dtype=torch.int64 if name in _WHOLE_NUMBERS else torch.get_default_dtype())
    joined = torch.cat(parts)
    if name == "mask" and not bool(((joined == 0) | (joined == 1)).all()):
        wrong = joined[(joined != 0) & (joined != 1)][0].item()
        raise ValueError(f"mask has the value {wrong}: it is 1 or True where a token counts, else 0 or False")
    return joined


def as_column(name: str, values: Any, is_read: bool) -> torch.Tensor | None:
    """A column of a mapping as a tensor, whole numbers as int64; None for one that is not numbers by row.

    Args:
        name: The column, for errors.
        values: A tensor, an array, or a list of numbers, lists, tensors or arrays.
        is_read: Whether models read it: then it has to be a rectangle (rows, tokens) of whole numbers.

    Raises:
        ValueError: It is read, and is something else.
    """
    rows = values.tolist() if getattr(getattr(values, "dtype", None), "kind", "") == "O" else values
    if isinstance(rows, list | tuple):
        rows = [torch.as_tensor(row) if hasattr(row, "dtype") else row for row in rows]
    try:
        is_stacked = isinstance(rows, list) and rows and all(isinstance(row, torch.Tensor) for row in rows)
        made = torch.stack([_long(row) for row in rows]) if is_stacked else _long(torch.as_tensor(rows))
    except (TypeError, ValueError, RuntimeError) as error:
        if not is_read:
            return None
        what = _shapes(rows)
        raise ValueError(
            f"the column {name} is no rectangle of whole numbers, {what}: pad its rows to one length"
        ) from error
    fractions = not name.endswith("mask") and made.is_floating_point()
    if is_read and (made.dim() != 2 or fractions or made.is_complex()):
        raise ValueError(
            f"the column {name} is of {made.dtype} with the shape {tuple(made.shape)}: use whole numbers (rows, tokens)"
        )
    return made if made.dim() else None


def _shapes(rows: Any) -> str:
    """A few words for rows that do not make a rectangle."""
    if not isinstance(rows, list):
        return f"but a {type(rows).__name__} of {getattr(rows, 'dtype', 'no dtype')}"
    lengths = {len(row) for row in rows if hasattr(row, "__len__") and not isinstance(row, str)}
    if len(lengths) > 1:
        return f"but has rows of {min(lengths)} to {max(lengths)} values"
    return f"but has rows of {', '.join(sorted({type(row).__name__ for row in rows}))}"


def _long(values: torch.Tensor) -> torch.Tensor:
    """Whole numbers as int64, in which models look them up; others unchanged."""
    whole = not values.is_floating_point() and not values.is_complex() and values.dtype != torch.bool
    return values.long() if whole else values


def entry(name: str, value: Any) -> torch.Tensor:
    """One entry of a column as a tensor, whole numbers as int64 or int32.

    Args:
        name: The column.
        value: A tensor, an array, or a list of numbers.

    Raises:
        ValueError: It is something else, or its numbers are not of the column's kind.
    """
    try:
        part = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} has {value!r:.60} as one entry: it is a 1-D tensor, array or list of numbers"
        ) from error
    if part.is_complex() or (part.dtype == torch.bool and name in ("ids", "versions")):
        raise ValueError(f"{name} has the dtype {part.dtype}: use {'whole ' if name in _WHOLE_NUMBERS else ''}numbers")
    if name not in _WHOLE_NUMBERS:
        return part if part.is_floating_point() else part.to(torch.get_default_dtype())
    if part.is_floating_point() and name != "mask":
        if part.numel() and bool((part != part.round()).any()):
            raise ValueError(f"{name} has the dtype {part.dtype}: use whole numbers")
        return part.long()
    if part.is_floating_point() and not part.numel():
        return part.long()  # a list without numbers
    whole_numbers = part if name == "mask" or part.dtype == torch.int32 else _long(part)
    if part.dtype == torch.uint64 and part.numel() and int(whole_numbers.min()) < 0:
        raise ValueError(f"{name} has a whole number of 2**63 or more in {value!r:.60}: use smaller ones")
    return whole_numbers


def _spread(name: str, index: int, part: torch.Tensor, length: int) -> torch.Tensor:
    """One number as a column of its sequence; a column that is as long as its ids itself."""
    if part.dim() == 0 and name in _FROM_ONE_NUMBER:
        if name != "rewards":
            return part.expand(length)
        if not length:
            raise ValueError(f"{name}[{index}] is one number, for the last token, but the sequence is empty")
        return torch.cat([part.new_zeros(length - 1), part[None]])
    if part.dim() == 1 and len(part) != length:
        raise ValueError(f"{name}[{index}] has {len(part)} values, but ids[{index}] has {length}: one value a token")
    return part


def join_columns(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The columns of several parts, one after the other.

    Raises:
        ValueError: One has a column that another has not.
    """
    check_alike([list(part) for part in parts])
    return {name: _concatenated([part[name] for part in parts]) for name in parts[0]}


def is_missing(column: object) -> bool:
    """Whether a column is not there, or left out by a function that does not read it."""
    return column is None or isinstance(column, LeftOut)


def by_sequence(values: torch.Tensor | None, lengths: Sequence[int]) -> list[torch.Tensor] | None:
    """The values of a column by sequence; of one that is not there, or left out, this itself."""
    if values is None or is_missing(values):
        return cast("list[torch.Tensor] | None", values)
    return list(torch.split(values, list(lengths)))


def _mark(parts: Iterable[object]) -> Any:
    """A mark for all parts of a column where one is left out; None if all of it is there."""
    return next((part[:] for part in parts if isinstance(part, LeftOut)), None)


def _concatenated(parts: Sequence[torch.Tensor]) -> Any:
    mark = _mark(parts)
    return torch.cat(list(parts)) if mark is None else mark


def without_marks(columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, LeftOut]]:
    """Arguments of `Rollouts` without columns that are left out, and the marks of these by their names."""
    marks = {name: column for name, column in columns.items() if isinstance(column, LeftOut)}
    given = columns.get("columns")
    further = given if isinstance(given, Mapping) else {}
    own: dict[str, Any] = {name: column for name, column in further.items() if is_missing(column)}
    kept = {name: None if name in marks else column for name, column in columns.items()}
    if own:
        kept["columns"] = {name: column for name, column in further.items() if name not in own}
    return kept, {**marks, **own}


def check_alike(parts: Sequence[Sequence[str]]) -> None:
    """Raise for parts that have other columns.

    Raises:
        ValueError: One has a column that another has not.
    """
    for names in parts:
        if set(names) != set(parts[0]):
            raise ValueError(
                f"what is joined has the same columns, but one part has {', '.join(sorted(parts[0])) or 'none'} and "
                f"another one {', '.join(sorted(names)) or 'none'}"
            )


def join_further(parts: Sequence[Mapping[str, list[Any]]], rows: Sequence[int]) -> dict[str, list[Any]]:
    """Further columns of several parts of so many rows, one after the other; None where a part has not the column."""
    marks: dict[str, Any] = {name: one for part in parts for name, one in part.items() if is_missing(one)}
    found: dict[str, Any] = {name: marks.get(name, []) for part in parts for name in part}
    for part, count in zip(parts, rows, strict=True):
        for name, column in found.items():
            if name not in marks:
                column += part.get(name, [None] * count)
    return found


def known_columns(names: Any, known: Sequence[str]) -> list[str]:
    """Names of columns as a list.

    Raises:
        ValueError: There is no such column, or they are one text.
    """
    found = listed("names", list(names) if isinstance(names, set | frozenset) else names, "column")
    for name in found:
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"there is no column {name!r}, but {', '.join(known)}")
    return found


def starts(lengths: Sequence[int]) -> torch.Tensor:
    """The place of the first token of each sequence, and the number of all tokens at the end."""
    return torch.tensor([0, *lengths]).cumsum(0)


def alone(values: Any) -> Any:
    """A tensor that has its memory for itself; anything else, such as a slot for one in a call, unchanged."""
    if not isinstance(values, torch.Tensor) or values.untyped_storage().nbytes() == values.nbytes:
        return values
    return values.clone()


def alike(left: Any, right: Any) -> bool:
    """Whether two nested values are equal, tensors and arrays by dtype, shape and elements; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(value, right[key]) for key, value in left.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
    if isinstance(left, torch.Tensor):
        if (left.dtype, left.shape, left.device) != (right.dtype, right.shape, right.device):
            return False
        return bool(((left == right) | ((left != left) & (right != right))).all())
    return bool(left == right) or bool(left != left and right != right)


def entries(name: str, values: Sequence[Any], count: int, of: str) -> list[Any]:
    """The values as a list, with one entry for each row or sequence.

    Raises:
        ValueError: There are more or fewer.
    """
    found = listed(name, values, of)
    if len(found) != count:
        raise ValueError(f"{name} has {len(found)} entries, but there are {count} {of}s: give one for each")
    return found


def further_columns(columns: Mapping[str, Any] | None, count: int) -> dict[str, list[Any]]:
    """Further columns as lists, with one entry for each of so many rows.

    Raises:
        TypeError: They are no mapping by name.
        ValueError: One has more or fewer entries.
    """
    named = {} if columns is None else by_name("columns", columns)
    return {name: entries(f"columns[{name!r}]", column, count, "row") for name, column in named.items()}


def counts_of(counts: Sequence[Any] | None, sequences: int) -> list[int]:
    """The sequences of each row; one in each row without counts.

    Raises:
        TypeError: One is no whole number.
        ValueError: They are no list, one is below 0, or they do not add up to the sequences.
    """
    if counts is None:
        return [1] * sequences
    found = [whole(f"counts[{row}]", count) for row, count in enumerate(listed("counts", counts, "row"))]
    if min(found, default=0) < 0 or sum(found) != sequences:
        raise ValueError(f"counts={found} add up to {sum(found)} sequences, but ids has {sequences}")
    return found


def entries_of(name: str, values: Sequence[Any] | None, count: int, of: str) -> list[Any] | None:
    """The values as `entries` takes them, or None.

    Raises:
        ValueError: There are more or fewer.
    """
    return None if values is None else entries(name, values, count, of)


def truncated_flags(values: Sequence[Any] | None, count: int) -> list[bool] | None:
    """The column `truncated_sampling`: one flag a sequence, as Python's; None where none is set, as without the column.

    Raises:
        ValueError: There are more or fewer, or one is neither true nor false.
    """
    found = [plain_number(value) for value in entries_of("truncated_sampling", values, count, "sequence") or ()]
    for i, value in enumerate(found):
        if not isinstance(value, bool):
            raise ValueError(f"truncated_sampling[{i}] is {value!r:.60}: it is True or False")
    return found if any(found) else None


def join_flags(parts: Sequence[list[bool] | None], counts: Sequence[int]) -> list[bool] | None:
    """The flags of several parts of so many sequences, one after the other; None where none is set."""
    mark = _mark(parts)
    if mark is not None:
        return cast("list[bool]", mark)
    found = [flag for part, n in zip(parts, counts, strict=True) for flag in part or [False] * n]
    return found if any(found) else None


def temperatures_of(values: Sequence[Any] | None) -> list[float] | None:
    """Temperatures as Python's numbers, or None.

    Raises:
        ValueError: One is not above 0, or no number.
    """
    if values is None:
        return None
    found = [fraction(f"temperatures[{i}]", value) for i, value in enumerate(values)]
    for i, value in enumerate(found):
        if not 0 < value < math.inf:
            raise ValueError(f"temperatures[{i}] is {value}: a temperature is a number above 0; of greedy sequences 1")
    return found


def chain(parts: Sequence[list[Any] | None]) -> list[Any] | None:
    """The entries of all parts, one after the other; None where the parts have none."""
    mark = _mark(parts)
    if mark is not None:
        return cast("list[Any]", mark)
    return [entry for part in parts for entry in part or ()] if parts[0] is not None else None


def take_state(rollouts: object, state: Mapping[str, Any]) -> None:
    """Give rollouts the fields that came from another process; a worker reads large ones of a call afterwards.

    Raises:
        ValueError: Their lengths disagree, or a temperature is not above 0.
    """
    lengths, counts = state["lengths"], state["counts"]
    if min((*lengths, *counts), default=0) < 0 or sum(counts) != len(lengths):
        raise ValueError(f"counts={counts} add up to {sum(counts)} sequences, but lengths has {len(lengths)}")
    for name, column in state["tokens"].items():
        if not isinstance(column, StoredSlot | LeftOut) and tuple(column.shape) != (sum(lengths),):
            raise ValueError(f"{name} has the shape {tuple(column.shape)}, but there are {sum(lengths)} tokens")
    for name, column in {**state["columns"], "prompts": state["prompts"]}.items():
        if not isinstance(column, StoredSlot | LeftOut):
            entries_of(name, column, len(counts), "row")
    given = {name: None if is_missing(value) else value for name, value in state.items()}
    for name in ("completions", "finish", "temperatures"):
        entries_of(name, given[name], len(lengths), "sequence")
    temperatures_of(given["temperatures"])
    truncated_flags(given["truncated_sampling"], len(lengths))
    for name, value in state.items():
        object.__setattr__(rollouts, name, value)
