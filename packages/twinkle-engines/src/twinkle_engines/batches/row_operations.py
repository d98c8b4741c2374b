"""Rollouts by rows: checked, joined, with some of their columns, and what their rows cost."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from twinkle_engines.batches.columns import KNOWN, chained
from twinkle_engines.batches.padding import TEMPERATURES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twinkle_engines.batches.rollouts import Rollouts


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
    heat = rollouts.sequences.get(TEMPERATURES)
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
