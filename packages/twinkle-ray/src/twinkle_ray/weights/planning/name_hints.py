"""A `rename=` that would make two sets of names meet: wrappers put words of their own into the names of parameters."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_LOOKED_AT = 64  # names whose differences are candidates


def rename_hint(extra: Collection[str], missing: Collection[str]) -> str:
    """The `rename=` that maps most names of the source onto missing names of the target; "" where none maps any.

    Args:
        extra: Names of the source that the target does not have.
        missing: Names of the target that the source does not have.
    """
    taken_out = _best(extra, missing)
    put_in = _best(missing, extra)
    if taken_out[1] >= put_in[1] and taken_out[1]:
        (piece, at_start), count = taken_out
        new = f"name.removeprefix({piece!r})" if at_start else f'name.replace({piece!r}, "")'
    elif put_in[1] and put_in[0][1]:
        (piece, _), count = put_in
        new = f"{piece!r} + name"
    else:
        return ""
    return (
        f"rename=lambda name: {new} gives {count} of the source's {len(extra)} further names a name of the target: "
        "a wrapper (torch.compile, DDP, FSDP, an outer module) has put it there"
    )


def _best(longer: Collection[str], shorter: Collection[str]) -> tuple[tuple[str, bool], int]:
    """The words whose removal makes most of the longer names shorter ones, whether at the start only, and how many."""
    wanted = set(shorter)
    candidates: Counter[tuple[str, bool]] = Counter()
    for name in sorted(longer)[:_LOOKED_AT]:
        words = name.split(".")
        for start in range(len(words)):
            for stop in range(start + 1, len(words)):
                if ".".join(words[:start] + words[stop:]) in wanted:
                    candidates[".".join(words[start:stop]) + ".", start == 0] += 1
    rules = {(piece, False) for piece, _ in candidates} | {key for key in candidates if key[1]}
    counts = {rule: len({_without(rule)(name) for name in longer} & wanted) for rule in rules}
    best = max(counts, key=lambda rule: (counts[rule], rule[1], rule[0]), default=("", False))
    return best, counts.get(best, 0)


def _without(rule: tuple[str, bool]) -> Callable[[str], str]:
    piece, at_start = rule
    return lambda name: name.removeprefix(piece) if at_start else name.replace(piece, "")
