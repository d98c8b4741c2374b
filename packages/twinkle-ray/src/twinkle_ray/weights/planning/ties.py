"""Target names that share memory: they must get equal values, because the last write would win otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from twinkle_ray.weights.shards.specs import RankSpecs


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
