"""The manifest: it pairs the source's tensors with the target's, and checks them before the first byte moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from twinkle_ray.weights.errors import ManifestError

if TYPE_CHECKING:
    from twinkle_ray.weights.shards import RankSpecs, TensorSpec

Rename: TypeAlias = Callable[[str], str | None]
Select: TypeAlias = Callable[[str], bool] | str | Sequence[str]
Convert: TypeAlias = bool | Callable[[str, Tensor, torch.dtype], Tensor] | None
BySide: TypeAlias = "Mapping[str, Sequence[tuple[int, TensorSpec]]]"

_SHOWN = 8
_NO_TIES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MatchOptions:
    """The user's options for pairing tensors.

    Attributes:
        rename: Gives the target's name for a source name, or None to leave the tensor out.
        select: The target names that take part: a predicate, or patterns such as `"*.lora_*"`.
        convert: What becomes of tensors whose dtypes differ: True casts them; a function (name, block, dtype) returns
            the block in the target's dtype, on the source's ranks; they are an error otherwise.
    """

    rename: Rename | None = None
    select: Select | None = None
    convert: Convert = None

    def renamed(self, name: str) -> str | None:
        """The target name of a source tensor; None if it takes no part."""
        new = name if self.rename is None else self.rename(name)
        return new if new is not None and self.selects(new) else None

    def selects(self, name: str) -> bool:
        """Whether a target name takes part."""
        if self.select is None:
            return True
        if callable(self.select):
            return self.select(name)
        patterns = [self.select] if isinstance(self.select, str) else self.select
        return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class TensorMatch:
    """One tensor that moves; tied source names are one entry, which may have several target names.

    Attributes:
        source: Its name at the source.
        targets: Its names at the target.
        shape: Of the whole tensor.
        wire: dtype in transit: the smaller of the two sides' dtypes, or the target's where a function converts.
        dtype: dtype at the target.
    """

    source: str
    targets: tuple[str, ...]
    shape: tuple[int, ...]
    wire: str
    dtype: str


@dataclass(slots=True)
class _Tensor:
    """One tensor name, over all ranks of a side.

    Attributes:
        ties: The names that are the same memory on every rank that holds a block of it.
    """

    shape: tuple[int, ...]
    dtype: str
    rank: int
    order: int
    ties: frozenset[str]


def by_name(side: Sequence[RankSpecs]) -> dict[str, list[tuple[int, TensorSpec]]]:
    """The specs of a side by tensor, each with its rank, ascending."""
    found: dict[str, list[tuple[int, TensorSpec]]] = {}
    for rank, rank_specs in enumerate(side):
        for spec in rank_specs:
            found.setdefault(spec.name, []).append((rank, spec))
    return found


def match(
    source: Sequence[RankSpecs], target: Sequence[RankSpecs], match_options: MatchOptions
) -> tuple[TensorMatch, ...]:
    """Pair the tensors of both sides, in the source's order.

    Raises:
        ManifestError: With the names that are missing on one side, and the shapes and dtypes that differ.
    """
    faults: list[str] = []
    theirs, ours = _tensors(target, "target", faults), _tensors(source, "source", faults)
    names: dict[str, str] = {}
    for name in ours:
        new = match_options.renamed(name)
        if new is None:
            continue
        if new in names:
            faults.append(f"{names[new]!r} and {name!r} of the source are both renamed to {new!r}")
        names[new] = name
    _check_names(names, ours, theirs, match_options, faults)
    representatives = {new: _representative(name, ours) for new, name in names.items()}
    faults.extend(_tie_faults(target, names, representatives))
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for new, name in names.items():
        if new not in theirs or any(tie in names and theirs[tie].order < theirs[new].order for tie in theirs[new].ties):
            continue  # an earlier name fills the same memory
        mine, other = ours[name], theirs[new]
        pair = repr(name) if name == new else f"{name!r} -> {new!r}"
        if mine.shape != other.shape:
            faults.append(f"{pair}: shape {mine.shape} at the source, {other.shape} at the target")
        wire = _wire(pair, mine.dtype, other.dtype, match_options.convert, faults)
        grouped.setdefault((representatives[new], wire, other.dtype), []).append(new)
    if faults:
        more = f"\n  and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise ManifestError("source and target do not hold the same weights:\n  " + "\n  ".join(faults[:_SHOWN]) + more)
    return tuple(
        TensorMatch(name, tuple(targets), ours[name].shape, wire, dtype)
        for (name, wire, dtype), targets in grouped.items()
    )


@cache
def item_size(dtype: str) -> int:
    """Bytes of one element of a dtype given by torch's name."""
    return torch_dtype(dtype).itemsize


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of this name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _wire(pair: str, mine: str, other: str, convert: Convert, faults: list[str]) -> str:
    """The dtype in transit; notes dtypes that differ where nothing converts them, or a cast drops what they are.

    A cast of floats to integers or of complex numbers to real ones drops what makes the weights.
    """
    if mine == other:
        return mine
    if callable(convert):
        return other
    what = f"{pair}: {mine} at the source, {other} at the target"
    if _kind(mine) > _kind(other):
        faults.append(f"{what}: a cast would drop a part of each value, also with convert=True; make them alike")
    elif not convert:
        faults.append(f"{what} (convert=True converts)")
    return min((mine, other), key=item_size)


@cache
def _kind(name: str) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    dtype = torch_dtype(name)
    if dtype.is_complex or dtype.is_floating_point:
        return 3 if dtype.is_complex else 2
    return int(dtype != torch.bool)


def _tensors(side: Sequence[RankSpecs], which: str, faults: list[str]) -> dict[str, _Tensor]:
    """The tensors of a side; notes those on whose shape or dtype its ranks do not agree."""
    ties = [_ties(rank_specs) for rank_specs in side]
    any_ties = any(ties)
    found: dict[str, _Tensor] = {}
    for name, of_ranks in by_name(side).items():
        rank, first = of_ranks[0]
        tensor = found[name] = _Tensor(first.shape, first.dtype, rank, len(found), _NO_TIES)
        faults.extend(
            f"{name!r} is {first.dtype} {first.shape} on rank {rank} of the {which} and {spec.dtype} {spec.shape} on "
            f"rank {other}"
            for other, spec in of_ranks
            if (spec.shape, spec.dtype) != (first.shape, first.dtype)
        )
        if any_ties:  # a rank without a block of the tensor does not know its ties
            known = [ties[other].get(name, _NO_TIES) for other, spec in of_ranks if spec.boxes]
            tensor.ties = frozenset.intersection(*known) if known else _NO_TIES
    return found


def _ties(rank_specs: RankSpecs) -> dict[str, frozenset[str]]:
    """The other names of each tensor of a rank that has several."""
    if all(spec.tie == spec.name for spec in rank_specs):
        return {}
    partners: dict[str, set[str]] = {}
    for spec in rank_specs:
        partners.setdefault(spec.tie, set()).add(spec.name)
    return {name: frozenset(names - {name}) for names in partners.values() for name in names if len(names) > 1}


def _check_names(
    names: Mapping[str, str],
    ours: Mapping[str, _Tensor],
    theirs: Mapping[str, _Tensor],
    match_options: MatchOptions,
    faults: list[str],
) -> None:
    """Note the names that only one side has; one of several tied names is enough on either side."""
    wanted = [name for name in theirs if match_options.selects(name)]
    missing = [name for name in wanted if name not in names and not any(tie in names for tie in theirs[name].ties)]
    faults.extend(
        f"{name!r} is not in the source (on rank {theirs[name].rank} of the target)" for name in sorted(missing)
    )
    extra = [
        new
        for new, name in names.items()
        if new not in theirs and not any(match_options.renamed(tie) in theirs for tie in ours[name].ties)
    ]
    if extra:
        shown = ", ".join(repr(name) for name in sorted(extra)[:_SHOWN])
        more = f" and {len(extra) - _SHOWN} more" if len(extra) > _SHOWN else ""
        faults.append(f"not in the target: {shown}{more} (rename= to None or select= leaves tensors out)")


def _representative(name: str, ours: Mapping[str, _Tensor]) -> str:
    """The source name that represents a group of tied names: they are tied on every rank that holds one of them."""
    return min([name, *(tie for tie in ours[name].ties if name in ours[tie].ties)])


def _tie_faults(
    target: Sequence[RankSpecs], names: Mapping[str, str], representatives: Mapping[str, str]
) -> Iterator[str]:
    """Faults of target tensors that are one tensor, and two at the source."""
    found: dict[tuple[str, str], int] = {}
    for rank, rank_specs in enumerate(target):
        leaders: dict[str, str] = {}
        for spec in rank_specs:
            if spec.name in names and spec.boxes:
                leader = leaders.setdefault(spec.tie, spec.name)
                if representatives[leader] != representatives[spec.name]:
                    found.setdefault((leader, spec.name), rank)
    for (first, second), rank in found.items():
        yield (
            f"{first!r} and {second!r} are one tensor on rank {rank} of the target, and {names[first]!r} and "
            f"{names[second]!r} are two at the source: tie them there too, or leave one out by rename= to None"
        )
