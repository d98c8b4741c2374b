"""Columns of rollouts: how what a caller gives becomes one, and how they are counted, cut, joined, padded and packed.

A column may be of any row type: a list, a tensor or an array of any shape, or what a program has registered. A padded
column has the shape [sequences, longest sequence]. A pack has the shape [1, tokens]: sequences one after the other,
whose first tokens have the position 0, which is how Transformers tells them apart.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from twinkle_remote import concat as concat_rows
from twinkle_remote import take as take_rows
from twinkle_remote.errors import DispatchError
from twinkle_remote.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twinkle_engines.batches.rollouts import Rollouts


By = Literal["token", "sequence", "row"]
BY_TOKEN = (
    *("ids", "mask", "logprobs", "ref_logprobs", "rewards", "advantages", "versions"),
    *("values", "returns", "proximal", "teacher"),
)
BY_SEQUENCE = ("completions", "finish", "temperatures")
KNOWN: dict[str, By] = {
    **dict.fromkeys(BY_TOKEN, "token"),
    **dict.fromkeys(BY_SEQUENCE, "sequence"),
    "prompts": "row",
}
"""The columns that have names of their own, and what has an entry in each."""
_WHOLE_NUMBERS = ("ids", "mask", "versions")
_ONE_EACH = ("rewards", "advantages", "versions")
"""Columns by token of which a sequence may have one number: a reward stands at its last token, others at each."""


def stored(column: Any) -> Any:
    """A column by sequence or row as it is kept: any row type as it is, and other iterables as lists."""
    if isinstance(column, Tensor | np.ndarray):
        return column
    try:
        has_rows = not isinstance(column, list | tuple) and rows_of(column) is not None
    except DispatchError:  # a type that nobody has registered
        has_rows = False
    return column if has_rows else list(column)


def count(column: Any) -> int | None:
    """Number of rows of a column; None where it has none."""
    return len(column) if isinstance(column, list | Tensor | np.ndarray) else rows_of(column)


def cut(column: Any, start: int, stop: int) -> Any:
    """Rows [start, stop) of a column, as views where the type has them."""
    if isinstance(column, list | Tensor | np.ndarray):
        return column[start:stop]
    return take_rows(column, slice(start, stop))


def chained(parts: Sequence[Any]) -> Any:
    """The rows of the parts of a column, one after the other; those without rows may be of another type.

    Raises:
        ValueError: Parts with rows are of several types.
    """
    used = [part for part in parts if count(part)] or list(parts[:1])
    if len({type(part) for part in used}) > 1:
        raise ValueError(
            f"a column has one type, got parts of {', '.join(sorted({type(one).__name__ for one in used}))}"
        )
    if not used or isinstance(used[0], list):
        return [entry for part in used for entry in part]
    if isinstance(used[0], Tensor):
        return torch.cat(used)
    return np.concatenate(used) if isinstance(used[0], np.ndarray) else concat_rows(used)


def by_token(name: str, sequences: Sequence[Any], lengths: Sequence[int]) -> Any:
    """The values of a column by token of all sequences, one after the other.

    Args:
        name: Its name; those that are known hold numbers, one for each token.
        sequences: The values of each sequence: as many rows as it has tokens. Lists of numbers become tensors.
        lengths: Tokens of each sequence.

    Raises:
        ValueError: There is not one entry for each sequence, or one is not as long as its ids, or of another kind.
    """
    if len(sequences) != len(lengths):
        raise ValueError(f"{name} has {len(sequences)} entries, but there are {len(lengths)} sequences: one for each")
    if name not in KNOWN:
        parts = [_as_tensor(values) for values in sequences]
        for i, (part, length) in enumerate(zip(parts, lengths, strict=True)):
            if count(part) != length:
                raise ValueError(f"{name}[{i}] has {count(part)} rows, but ids[{i}] has {length} tokens: one for each")
        return chained(parts)
    is_whole = name in _WHOLE_NUMBERS
    parts = [
        _numbers(name, i, values, length) for i, (values, length) in enumerate(zip(sequences, lengths, strict=True))
    ]
    joined = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64 if is_whole else None)
    if name == "mask" and not bool(((joined == 0) | (joined == 1)).all()):
        raise ValueError("mask has other values than 0 and 1: it is 1 or True where a token counts")
    return joined


def _numbers(name: str, i: int, values: Any, length: int) -> Tensor:
    """The values of sequence i of a known column: one for each of its tokens."""
    is_whole = name in _WHOLE_NUMBERS
    part = torch.as_tensor(values)
    if is_whole and part.is_floating_point() and bool((part != part.round()).any()):
        raise ValueError(f"{name}[{i}] has {values!r:.60}: use whole numbers")
    if part.dim() == 0 and name in _ONE_EACH:
        at_end = torch.cat([part.new_zeros(max(length - 1, 0)), part[None]])
        part = at_end if name == "rewards" else part.expand(length)
    if part.shape != (length,):
        raise ValueError(
            f"{name}[{i}] has the shape {tuple(part.shape)}, but ids[{i}] has {length} tokens: one value a token"
        )
    if is_whole and part.dtype not in (torch.bool, torch.int32):
        part = part.long()
    return part if is_whole or part.is_floating_point() else part.to(torch.get_default_dtype())


def _as_tensor(values: Any) -> Any:
    """Lists of numbers, or of lists of them, as a tensor; all else, a list of texts too, as it is."""
    first = values
    while isinstance(first, list) and first:
        first = first[0]
    return torch.as_tensor(values) if isinstance(values, list) and isinstance(first, int | float) else values


def entries(column: Any, places: Sequence[int]) -> Any:
    """The entries of a column at some places: of a list of numbers, of an array and of a tensor as a tensor."""
    if isinstance(column, np.ndarray) and column.dtype != object:
        column = torch.as_tensor(column)
    if isinstance(column, Tensor):
        return column[torch.tensor(places, dtype=torch.int64)]
    return _as_tensor([column[i] for i in places]) if isinstance(column, list) else take_rows(column, places)


def alone(column: Any) -> Any:
    """A tensor that has its memory for itself; anything else, such as a slot for one in a call, unchanged."""
    if not isinstance(column, Tensor) or column.untyped_storage().nbytes() == column.nbytes:
        return column
    return column.clone()


def equal(left: Any, right: Any) -> bool:
    """Whether two nested values are equal, tensors and arrays by dtype, shape and elements; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    if hasattr(left, "dtype") and hasattr(left, "shape"):
        same = left.dtype == right.dtype and left.shape == right.shape
        return same and bool(((left == right) | ((left != left) & (right != right))).all())
    return bool(left == right) or bool(left != left and right != right)


def check(rollouts: Rollouts) -> None:
    """Raise where columns have not an entry for each token, sequence or row; in a call some are not there yet."""
    if sum(rollouts.counts) != len(rollouts.lengths) or min((*rollouts.counts, *rollouts.lengths), default=0) < 0:
        raise ValueError(
            f"counts={rollouts.counts} add up to {sum(rollouts.counts)} sequences, but ids has {len(rollouts.lengths)}"
        )
    sizes = (
        ("token", rollouts.tokens, sum(rollouts.lengths)),
        ("sequence", rollouts.sequences, len(rollouts.lengths)),
        ("row", rollouts.rows, len(rollouts.counts)),
    )
    for by, columns, size in sizes:
        for name, column in columns.items():
            if isinstance(column, list | torch.Tensor | np.ndarray) and len(column) != size:
                raise ValueError(f"{name} has {len(column)} entries, but there are {size} {by}s: one for each")
    heat = rollouts.sequences.get("temperatures")
    if isinstance(heat, list) and not all(0 < one < float("inf") for one in heat):
        raise ValueError(f"temperatures are numbers above 0, of greedy sequences 1, got {min(heat)}")


def concat(every: Sequence[Rollouts]) -> Rollouts:
    """The rows of all parts, one after the other; parts without rows may have other columns.

    A further column by row that a part has not, as of rows of another source, is None in its rows.

    ValueError: one has a column by token or sequence, or prompts, that another has not.
    """
    used = [part for part in every if len(part)] or every[:1]
    own = [name for part in every for name in part.rows if name not in KNOWN]  # a part without rows shows its columns
    names = dict.fromkeys([*(name for part in used for name in part.rows), *own])
    if len(used) == 1 and names.keys() == used[0].rows.keys():
        return used[0]
    strict = [{*one.tokens, *one.sequences, *(one.rows.keys() & KNOWN.keys())} for one in used]
    if other := [names for names in strict if names != strict[0]]:
        raise ValueError(f"what is joined has the same columns, but only one part has {sorted(strict[0] ^ other[0])}")
    return used[0].built(
        {name: chained([part.tokens[name] for part in used]) for name in used[0].tokens},
        {name: chained([part.sequences[name] for part in used]) for name in used[0].sequences},
        {name: chained([part.rows.get(name, [None] * len(part)) for part in used]) for name in names},
        [n for part in used for n in part.lengths],
        [n for part in used for n in part.counts],
    )


def join(parts: Sequence[Rollouts]) -> Rollouts:
    """The columns of all parts, of the same sequences; a later part wins a name. ValueError: of other sequences."""
    first = parts[0]
    for part in parts[1:]:
        same = (part.counts, part.lengths) == (first.counts, first.lengths)
        if not same or not torch.equal(part.tokens["ids"], first.tokens["ids"]):
            raise ValueError("the rollouts have other sequences: use parts of the same rows, in the same order")
    kinds = [[one.tokens for one in parts], [one.sequences for one in parts], [one.rows for one in parts]]
    joined = [{name: column for columns in found for name, column in columns.items()} for found in kinds]
    return first.built(*joined, first.lengths, first.counts)


def select(rollouts: Rollouts, names: Collection[object]) -> Rollouts:
    """The same rows with these columns, and `ids` and `counts`. ValueError: there is no such column."""
    known = names_of(rollouts)
    if strange := [name for name in names if name not in known]:
        raise ValueError(f"there is no column {strange[0]!r}, but {', '.join(known)}")
    kept = [
        {name: column for name, column in columns.items() if name in names or name == "ids"}
        for columns in (rollouts.tokens, rollouts.sequences, rollouts.rows)
    ]
    return rollouts.built(*kept, rollouts.lengths, rollouts.counts)


def names_of(rollouts: Rollouts) -> list[str]:
    """The columns by token, by sequence and by row; `counts` is no column, and is always there."""
    return [*rollouts.tokens, *rollouts.sequences, *rollouts.rows]


def row_numbers(key: Any, rows: int) -> tuple[list[int], bool]:
    """The rows of a key, and whether it is one number; see `Rollouts.__getitem__`."""
    plain: Any = key.tolist() if hasattr(key, "tolist") else key
    is_one = not isinstance(plain, list | tuple | range)
    numbers = [plain] if is_one else list(plain)
    if any(isinstance(one, bool) or str(getattr(one, "dtype", "")).endswith("bool") for one in numbers):
        raise TypeError(f"rows are chosen by numbers, got {key!r:.60}; [i for i, keep in enumerate(flags) if keep]")
    return [range(rows)[int(one)] for one in numbers], is_one


def shown(rollouts: Rollouts) -> str:
    """Sizes, names of columns, and the first answers."""
    sizes = f"{len(rollouts)} rows, {len(rollouts.lengths)} sequences, {sum(rollouts.lengths)} tokens"
    lines = [f"Rollouts({sizes}, columns: {', '.join(names_of(rollouts))})"]
    if isinstance(prompts := rollouts.prompts, list) and isinstance(completions := rollouts.completions, list):
        for row, group in islice(zip(prompts, rollouts.groups(), strict=True), 3):
            answer = repr(completions[group[0]])[:80] if group else ""
            lines.append(f"  {row!r:.80} -> {answer}")
    return "\n".join(lines)


def take(rollouts: Rollouts, rows: Sequence[int]) -> Rollouts:
    """Rows of these numbers: as views where they follow each other."""
    return rollouts[slice(rows.start, rows.stop) if isinstance(rows, range) else list(rows)]


def token_costs(rollouts: Rollouts) -> Sequence[float]:
    """The tokens of each row, prompts included."""
    lengths = iter(rollouts.lengths)
    return [float(sum(islice(lengths, count))) for count in rollouts.counts]


ROWS: dict[str, Any] = {
    "take": take,
    "concat": concat,
    "columns": names_of,
    "select": select,
    "join": join,
    "costs": token_costs,
}
"""The functions of the row type, for dispatch, collect and tables."""


Padded: TypeAlias = dict[str, Any]
"""A padded batch or a pack, as a model and its losses read it: tensors; what is no numbers is a list by sequence."""
Side = Literal["left", "right"]

TEMPERATURES = "temperatures"
"""The temperature of its sequence at each token; 1 at padding."""


def padded(
    rollouts: Rollouts, sequences: Sequence[int], side: Side = "right", pad_id: int = 0, width: int = 0
) -> Padded:
    """Some sequences as rectangles, 0 where there is no token (a temperature: 1).

    Returns:
        `input_ids`, `attention_mask`, and the other columns by name.
    """
    lengths = torch.tensor([rollouts.lengths[i] for i in sequences], dtype=torch.int64)
    width = max([width, *lengths.tolist()])
    places = torch.arange(width)[None]
    there = places < lengths[:, None] if side == "right" else places >= width - lengths[:, None]
    fillers = {"input_ids": pad_id, TEMPERATURES: 1}
    made: Padded = {}
    for name, values in _by_token(rollouts, sequences).items():
        made[name] = values
        if isinstance(values, Tensor):
            made[name] = values.new_full((len(sequences), width, *values.shape[1:]), fillers.get(name, 0))
            made[name][there.to(values.device)] = values
    return {**made, "attention_mask": there.long().to(made["input_ids"].device), **_by_sequence(rollouts, sequences)}


def packed(rollouts: Rollouts, sequences: Sequence[int]) -> Padded:
    """Some sequences as a pack: `input_ids`, `position_ids`, `sequence_ids` (number in the batch), the others."""
    made = {name: one[None] if isinstance(one, Tensor) else one for name, one in _by_token(rollouts, sequences).items()}
    device = made["input_ids"].device
    positions = torch.cat([torch.arange(rollouts.lengths[i]) for i in sequences])
    numbers = torch.cat([torch.full((rollouts.lengths[i],), i) for i in sequences])
    layout = {"position_ids": positions[None].to(device), "sequence_ids": numbers[None].to(device)}
    return {**made, **layout, **_by_sequence(rollouts, sequences)}


def _by_token(rollouts: Rollouts, sequences: Sequence[int]) -> Padded:
    """The columns by token of some sequences, by the names of models: a tensor of all tokens, else a list by sequence.

    What is one a sequence for a model, its temperature, stands at each token.
    """
    starts = rollouts.starts[1]
    places = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in sequences] or [torch.empty(0).long()])
    made: Padded = {}
    for name, given in rollouts.tokens.items():
        is_array = isinstance(given, np.ndarray) and given.dtype.kind in "biuf"
        values = torch.as_tensor(given) if is_array else given
        is_tensor = isinstance(values, Tensor)
        made["input_ids" if name == "ids" else name] = (
            values[places.to(values.device)]
            if is_tensor
            else [cut(values, starts[i], starts[i + 1]) for i in sequences]
        )
    if TEMPERATURES in rollouts.sequences:
        each = torch.tensor([rollouts.sequences[TEMPERATURES][i] for i in sequences], dtype=torch.float64)
        lengths = torch.tensor([rollouts.lengths[i] for i in sequences], dtype=torch.int64)
        made[TEMPERATURES] = each.repeat_interleave(lengths).to(made["input_ids"].device)
    return made


def _by_sequence(rollouts: Rollouts, sequences: Sequence[int]) -> Padded:
    """The further columns by sequence and by row, with an entry for each sequence."""
    rows = [bisect_right(rollouts.starts[0], i) - 1 for i in sequences]
    made = {name: entries(one, sequences) for name, one in rollouts.sequences.items() if name not in KNOWN}
    return {**made, **{name: entries(one, rows) for name, one in rollouts.columns.items()}}


def fit(lengths: Sequence[int], length: int) -> list[list[int]]:
    """The sequences of each pack, by first fit decreasing (Johnson 1973): at most 11/9 of the fewest packs, and 1.

    Raises:
        ValueError: A sequence is longer than that.
    """
    if max(lengths, default=0) > length:
        raise ValueError(
            f"a sequence has {max(lengths)} tokens, but max_tokens={length}: use max_tokens={max(lengths)}"
        )
    packs: list[list[int]] = []
    leaves = 1 << max(len(lengths) - 1, 0).bit_length()
    room = [length] * (2 * leaves)  # a tree: a node has the most room of those below, and pack k is leaf leaves + k
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not lengths[i]:
            break
        node = 1
        while node < leaves:
            node = 2 * node + (room[2 * node] < lengths[i])
        if node - leaves == len(packs):
            packs.append([])
        packs[node - leaves].append(i)
        room[node] -= lengths[i]
        while node := node // 2:
            room[node] = max(room[2 * node], room[2 * node + 1])
    return [sorted(pack) for pack in packs]
