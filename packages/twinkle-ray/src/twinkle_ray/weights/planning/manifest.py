"""The manifest: it pairs the source's tensors with the target's, and checks them before the first byte moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import torch

from twinkle_ray.weights.errors import ManifestError
from twinkle_ray.weights.planning.layouts import RankGroup, rank_groups

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from twinkle_ray.weights.shards.specs import RankSpecs

Rename: TypeAlias = Callable[[str], str | None]
Select: TypeAlias = Callable[[str], bool] | str | Sequence[str]

_SHOWN = 8
_LOOKED_AT = 64  # names whose differences are candidates for a rename=
_NO_TIES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MatchOptions:
    """The user's options for pairing tensors.

    Attributes:
        rename: Gives the target's name for a source name, or None to leave the tensor out.
        select: The target names that take part: a predicate, or patterns such as `"*.lora_*"`.
        convert: Convert tensors whose dtypes differ; they are an error otherwise.
    """

    rename: Rename | None = None
    select: Select | None = None
    convert: bool = False

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
        wire: dtype in transit: the smaller of the two sides' dtypes.
        dtype: dtype at the target.
    """

    source: str
    targets: tuple[str, ...]
    shape: tuple[int, ...]
    wire: str
    dtype: str


@dataclass(slots=True)
class _Tensor:
    """One tensor name, over all ranks of a side."""

    shape: tuple[int, ...]
    dtype: str
    rank: int
    order: int
    ties: frozenset[str] | None = None


def match(
    source: Sequence[RankSpecs], target: Sequence[RankSpecs], match_options: MatchOptions
) -> tuple[TensorMatch, ...]:
    """Pair the tensors of both sides, in the source's order.

    Raises:
        ManifestError: With the names that are missing on one side, and the shapes and dtypes that differ.
    """
    faults: list[str] = []
    theirs = _tensors_by_name(target, "target", faults)
    ours = _tensors_by_name(source, "source", faults)
    names: dict[str, str] = {}
    for name in ours:
        new = match_options.renamed(name)
        if new is None:
            continue
        if new in names:
            faults.append(f"{names[new]!r} and {name!r} of the source are both renamed to {new!r}")
        names[new] = name
    wanted = {name for name in theirs if match_options.selects(name)}
    satisfied = {name for name in wanted if name in names or any(tie in names for tie in theirs[name].ties or ())}
    extra = {
        new
        for new, name in names.items()
        if new not in theirs and not _named_otherwise(name, ours, match_options, theirs)
    }
    _name_faults(extra, wanted - satisfied, theirs, faults)
    grouped: dict[tuple[str, str, str], list[str]] = {}
    representatives = {new: _representative(name, ours) for new, name in names.items()}
    faults.extend(shared_memory_faults(source, target, names, representatives, wanted))
    for new, name in names.items():
        if new not in theirs or _tied_away(new, names, theirs):
            continue
        mine, other = ours[name], theirs[new]
        if mine.shape != other.shape:
            faults.append(f"{_pair(name, new)}: shape {mine.shape} at the source, {other.shape} at the target")
        if mine.dtype != other.dtype:
            _dtype_fault(_pair(name, new), mine.dtype, other.dtype, match_options.convert, faults)
        wire = min((mine.dtype, other.dtype), key=item_size)
        grouped.setdefault((representatives[new], wire, other.dtype), []).append(new)
    if faults:
        more = f"\n  and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        hint = rename_hint({names[new] for new in extra}, wanted - satisfied)
        raise ManifestError(
            "source and target do not hold the same weights:\n  "
            + "\n  ".join(faults[:_SHOWN])
            + more
            + (hint and f"\n{hint}")
        )
    return tuple(
        TensorMatch(name, tuple(targets), ours[name].shape, wire, dtype)
        for (name, wire, dtype), targets in grouped.items()
    )


@cache
def item_size(dtype: str) -> int:
    """Bytes of one element of a dtype given by torch's name."""
    return torch_dtype(dtype).itemsize


def _dtype_fault(names: str, mine: str, other: str, convert: bool, faults: list[str]) -> None:
    """Note dtypes that differ, where they are not to be converted, or where the values would not be the same weights.

    A cast of floats to integers or of complex numbers to real ones drops what makes the weights.
    """
    what = f"{names}: {mine} at the source, {other} at the target"
    if _kind(mine) > _kind(other):
        faults.append(f"{what}: a cast would drop a part of each value, also with convert=True; make them alike")
    elif not convert:
        faults.append(f"{what} (convert=True converts)")


@cache
def _kind(name: str) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    dtype = torch_dtype(name)
    if dtype.is_complex or dtype.is_floating_point:
        return 3 if dtype.is_complex else 2
    return int(dtype != torch.bool)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of this name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _tensors_by_name(all_specs: Sequence[RankSpecs], side: str, faults: list[str]) -> Mapping[str, _Tensor]:
    found: dict[str, _Tensor] = {}
    tied = _tied_names(all_specs)
    places: dict[str, list[tuple[RankGroup, int]]] = {}
    groups = rank_groups(all_specs)
    for group in groups:
        for position, name in enumerate(group.names):
            places.setdefault(name, []).append((group, position))
    agreed = all(group.agrees() for group in groups)
    for name, of_name in places.items():
        first, at = of_name[0]
        spec = first.rows[0][at]
        tensor = found[name] = _Tensor(spec.shape, spec.dtype, first.ranks[0], len(found))
        others = [group.rows[0][i] for group, i in of_name[1:]]
        if not agreed or any((other.shape, other.dtype) != (spec.shape, spec.dtype) for other in others):
            faults.extend(_disagreements(tensor, side, of_name))
        for rank, spec in (
            (rank, row[i]) for group, i in of_name for rank, row in zip(group.ranks, group.rows, strict=True)
        ):
            if tensor.ties == _NO_TIES:
                break
            if spec.boxes:  # a rank without a block of the tensor does not know its ties
                ties = tied[rank].get(name, _NO_TIES)
                tensor.ties = ties if tensor.ties is None else tensor.ties & ties
    return found


def _disagreements(tensor: _Tensor, side: str, places: Sequence[tuple[RankGroup, int]]) -> Iterator[str]:
    """Faults of the ranks whose shape or dtype of a tensor is not that of the first."""
    for group, position in places:
        for rank, spec in group.column(position):
            if (spec.shape, spec.dtype) != (tensor.shape, tensor.dtype):
                yield (
                    f"{spec.name!r} is {tensor.dtype} {tensor.shape} on rank {tensor.rank} of the {side} "
                    f"and {spec.dtype} {spec.shape} on rank {rank}"
                )


def _tied_names(all_specs: Sequence[RankSpecs]) -> list[dict[str, frozenset[str]]]:
    """For each rank the other names of each tensor that has several."""
    found: list[dict[str, frozenset[str]]] = []
    for rank_specs in all_specs:
        partners: dict[str, set[str]] = {}
        if any(spec.tie != spec.name for spec in rank_specs):
            for spec in rank_specs:
                partners.setdefault(spec.tie, set()).add(spec.name)
        found.append({name: frozenset(names - {name}) for names in partners.values() for name in names})
    return found


def _name_faults(extra: set[str], missing: set[str], theirs: Mapping[str, _Tensor], faults: list[str]) -> None:
    faults.extend(
        f"{name!r} is not in the source (on rank {theirs[name].rank} of the target)" for name in sorted(missing)
    )
    if extra:
        shown = ", ".join(repr(name) for name in sorted(extra)[:_SHOWN])
        more = f" and {len(extra) - _SHOWN} more" if len(extra) > _SHOWN else ""
        faults.append(f"not in the target: {shown}{more} (rename= to None or select= leaves tensors out)")


def _named_otherwise(
    name: str, ours: Mapping[str, _Tensor], match_options: MatchOptions, theirs: Mapping[str, _Tensor]
) -> bool:
    """Whether the target has this source tensor under one of its tied names."""
    return any(match_options.renamed(tie) in theirs for tie in ours[name].ties or ())


def _tied_away(new: str, names: Mapping[str, str], theirs: Mapping[str, _Tensor]) -> bool:
    """Whether an earlier name already fills the target's memory of this name."""
    return any(tie in names and theirs[tie].order < theirs[new].order for tie in theirs[new].ties or ())


def _representative(name: str, ours: Mapping[str, _Tensor]) -> str:
    """The source name that represents a group of tied names: they are tied on every rank that holds one of them."""
    tied = [tie for tie in ours[name].ties or () if name in (ours[tie].ties or ())]
    return min([name, *tied])


def _pair(name: str, new: str) -> str:
    return repr(name) if name == new else f"{name!r} -> {new!r}"


def shared_memory_faults(
    source: Sequence[RankSpecs],
    target: Sequence[RankSpecs],
    names: Mapping[str, str],
    representatives: Mapping[str, str],
    wanted: Collection[str],
) -> Iterator[str]:
    """Faults of target tensors that share memory; none if they are tied at the source too.

    Args:
        source: Specs of each source rank.
        target: Specs of each target rank.
        names: Source name by target name, of the tensors that move.
        representatives: By target name, the source name that represents all names that it is tied to.
        wanted: Target names that take part.
    """
    for (first, second), ranks in _tied(target, names).items():
        if representatives[first] != representatives[second]:
            apart = [rank for rank, rank_specs in enumerate(source) if _apart(rank_specs, names[first], names[second])]
            yield (
                f"{first!r} and {second!r} are one tensor on {_ranks(ranks)} of the target, and "
                f"{names[first]!r} and {names[second]!r} are two on {_ranks(apart)} of the source: tie them there too, "
                "or leave one out by rename= to None"
            )
    for (first, second), ranks in _overlapping(target, wanted).items():
        what = f"{first!r} and {second!r} share memory" if first != second else f"{first!r} shares memory with itself"
        yield f"{what} on {_ranks(ranks)} of the target and are not the same tensor there: leave one out by select="


def _tied(target: Sequence[RankSpecs], names: Mapping[str, str]) -> dict[tuple[str, str], list[int]]:
    """Pairs of names that move and are one tensor, with their target ranks; a pair has the first name of its group."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank, rank_specs in enumerate(target):
        if all(spec.tie == spec.name for spec in rank_specs):
            continue
        leaders: dict[str, str] = {}
        for spec in rank_specs:
            if spec.name in names and spec.boxes:
                leader = leaders.setdefault(spec.tie, spec.name)
                if leader != spec.name:
                    found.setdefault((leader, spec.name), []).append(rank)
    return found


def _overlapping(target: Sequence[RankSpecs], wanted: Collection[str]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for rank, rank_specs in enumerate(target):
        if not any(spec.overlaps for spec in rank_specs):
            continue
        taking = {spec.tie: spec.name for spec in reversed(rank_specs) if spec.name in wanted}
        for tie, others in {
            spec.tie: spec.overlaps for spec in rank_specs if spec.overlaps and spec.tie in taking
        }.items():
            for other in others:
                if other in taking:
                    found.setdefault((taking[other], taking[tie]), []).append(rank)
    return found


def _apart(rank_specs: RankSpecs, first: str, second: str) -> bool:
    """Whether a source rank holds one of two names without the other, or both in separate memory."""
    ties = {spec.name: spec.tie for spec in rank_specs if spec.boxes}
    return (first in ties or second in ties) and ties.get(first) != ties.get(second)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


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
