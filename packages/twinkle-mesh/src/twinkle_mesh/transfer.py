"""Transfer plans: which data rank of a component reads which rows of another component's results."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .balance import balanced_slice
from .mesh import DeviceMesh
from .rules.checks import at_least_one, whole_number
from .rules.messages import preview

if TYPE_CHECKING:
    from collections.abc import Sequence


class Piece(NamedTuple):
    """Rows `start` to `stop` of data rank `source`, counted from the first row of that data rank."""

    source: int
    start: int
    stop: int


def plan_transfer(
    source: DeviceMesh | int, target: DeviceMesh | int, lengths: Sequence[int]
) -> tuple[tuple[Piece, ...], ...]:
    """Return, for each data rank of `target`, the pieces of `source` that it reads, in order.

    The rows of the target are the balanced split of all rows, as in `DeviceMesh.get_slice`.

    Args:
        source: The mesh that made the results, or its data world size.
        target: The mesh that reads them, or its data world size.
        lengths: Rows on each data rank of `source`, each at least 0.

    Raises:
        ValueError: when `lengths` does not have one entry for each data rank of `source`, or one is negative.
    """
    sources, targets = _data_world_size("source", source), _data_world_size("target", target)
    if len(lengths) != sources:
        raise ValueError(
            f"lengths has {len(lengths)} entries, but source has data_world_size={sources}; give {sources} lengths, "
            "one for each data rank"
        )
    held = [whole_number("lengths", length) for length in lengths]
    if min(held) < 0:
        raise ValueError(f"lengths=({preview(held)}) must be at least 0 each")

    total = sum(held)
    plan: list[tuple[Piece, ...]] = []
    rank, before = 0, 0
    for index in range(targets):
        want = balanced_slice(total, targets, index)
        pieces: list[Piece] = []
        position: int = want.start
        while position < want.stop:
            while before + held[rank] <= position:
                before += held[rank]
                rank += 1
            stop = min(want.stop, before + held[rank])
            pieces.append(Piece(rank, position - before, stop - before))
            position = stop
        plan.append(tuple(pieces))
    return tuple(plan)


def _data_world_size(field: str, given: DeviceMesh | int) -> int:
    if isinstance(given, DeviceMesh):
        return given.data_world_size
    try:
        return at_least_one(field, given)
    except ValueError:
        raise ValueError(f"{field}={given!r} must be a mesh or a data world size of at least 1") from None
