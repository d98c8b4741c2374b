"""The contents of a picture: grids of ranks, one for each slice of the leading dims."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from twinkle_mesh.expert import expert_view

from .explain import summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_mesh.data_parallel import DataParallel

_MAX_SLICES = 8
_MAX_ROWS = 16
_WRAP = 16


@dataclass(frozen=True)
class Grid:
    """One slice of a mesh: its two innermost dims, or its only dim in several rows. None stands for folded parts."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    ranks: tuple[tuple[int | None, ...], ...]


@dataclass(frozen=True)
class Drawing:
    """The contents of a picture, as text or as SVG."""

    head: str
    grids: tuple[Grid | None, ...]
    rank: int | None
    marks: dict[int, str]
    """For each rank in a group with the highlighted rank, the letter of that dim."""
    legend: tuple[str, ...]
    nodes: dict[int, int]


def drawing(mesh: DataParallel, rank: int | None, columns: int) -> Drawing:
    """Return the contents of a picture of `mesh` in about `columns` columns."""
    home = None if rank is None else list(mesh.coordinate(rank).values())
    grids = tuple(_grids(mesh, home, columns))
    marks: dict[int, str] = {}
    legend: list[str] = []
    if rank is not None:
        shown = {held for grid in grids if grid for row in grid.ranks for held in row}
        letters = _letters(mesh.dim_names)
        legend.append(_place(mesh, rank))
        for dim in mesh.dim_names:
            group = mesh.group(dim, rank)
            if 1 < len(group) < mesh.world_size:
                marks.update({peer: letters[dim] for peer in group if peer != rank and peer in shown})
                legend.append(f"{letters[dim]}  {dim} group {group!r}")
    nodes: dict[int, int] = {}
    if mesh.nodes is not None:
        held = [held for grid in grids if grid for row in grid.ranks for held in row if held is not None]
        nodes = {each: mesh.nodes.of(each) for each in held}
    return Drawing(summary(mesh), grids, rank, marks, tuple(legend), nodes)


def _place(mesh: DataParallel, rank: int) -> str:
    coords = " ".join(f"{name}={coord}" for name, coord in mesh.coordinate(rank).items())
    parts = [f"[{rank}]", coords]
    if mesh.data_dims:
        parts.append(f"data rank {mesh.data_rank(rank)} of {mesh.data_world_size}")
    if mesh.nodes is not None:
        parts.append(f"node {mesh.nodes.of(rank)}")
    if mesh.ep_size > 1:
        parts.append(
            "experts: " + " ".join(f"{name}={coord}" for name, coord in expert_view(mesh).coordinate(rank).items())
        )
    return "  ".join(part for part in parts if part)


def _letters(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each dim: the first letter of its last word if that is free."""
    letters: dict[str, str] = {}
    for name in names:
        wanted = name.rsplit("_", 1)[-1] + name + "abcdefghijklmnopqrstuvwxyz"
        letters[name] = next((c for c in wanted if c.isalpha() and c not in letters.values()), "+")
    return letters


def _grids(mesh: DataParallel, home: Sequence[int] | None, most_columns: int) -> Iterator[Grid | None]:
    """Yield the grids, and None for folded ones. Dims of size 1 are left out."""
    layout = mesh.layout
    dims = [dim for dim, size in enumerate(mesh.shape) if size > 1]
    names = [mesh.dim_names[dim] for dim in dims]
    shape = [mesh.shape[dim] for dim in dims]
    here = None if home is None else [home[dim] for dim in dims]
    if len(dims) < 2:
        yield _line(mesh, names or mesh.dim_names[:1], here, most_columns)
        return

    def rank_at(places: Sequence[int]) -> int:
        coords = [0] * len(mesh.shape)
        for dim, place in zip(dims, places, strict=True):
            coords[dim] = place
        return layout.rank(coords)

    lead = shape[:-2]
    at = None
    if here is not None:
        at = 0
        for size, coord in zip(lead, here[:-2], strict=True):
            at = at * size + coord
    rows = _fold(shape[-2], _MAX_ROWS, here[-2] if here else None, head=8, tail=4)
    head, tail = (most_columns - 4, 1) if most_columns > 4 else (int(here is None), 0)
    columns = _fold(shape[-1], most_columns, here[-1] if here else None, head=head, tail=tail)
    for number in _fold(prod(lead), _MAX_SLICES, at, head=2, tail=1):
        if number is None:
            yield None
            continue
        coords: list[int] = []
        for size in reversed(lead):
            number, coord = divmod(number, size)
            coords.insert(0, coord)
        yield Grid(
            title=" ".join(f"{name}={coord}" for name, coord in zip(names, coords, strict=False)),
            corner=f"{names[-2]} \\ {names[-1]}",
            columns=_labels(columns),
            rows=_labels(rows),
            ranks=tuple(
                tuple(None if row is None or column is None else rank_at([*coords, row, column]) for column in columns)
                for row in rows
            ),
        )


def _line(mesh: DataParallel, names: Sequence[str], home: Sequence[int] | None, most_columns: int) -> Grid:
    """Return the only dim in several rows, one for each node where nodes are equal."""
    ranks = mesh.ranks
    per_row = min(_WRAP, most_columns)
    if mesh.nodes is not None and mesh.nodes.ranks_per_node is not None:
        per_row = min(mesh.nodes.ranks_per_node, per_row)
    count = -(-len(ranks) // per_row)
    rows = _fold(count, _MAX_ROWS, home[0] // per_row if home else None, head=8, tail=4)
    columns = range(min(per_row, len(ranks)))
    return Grid(
        title="",
        corner="".join(names),
        columns=tuple(f"+{column}" if count > 1 else str(column) for column in columns),
        rows=tuple("" if count == 1 else "..." if row is None else str(row * per_row) for row in rows),
        ranks=tuple(
            tuple(
                None if row is None or row * per_row + column >= len(ranks) else ranks[row * per_row + column]
                for column in columns
            )
            for row in rows
        ),
    )


def _fold(size: int, most: int, must: int | None, *, head: int, tail: int) -> list[int | None]:
    """Return the indices to show, with None for each gap: all up to `most`, else the ends and `must`."""
    if size <= most:
        return list(range(size))
    kept = {*range(head), *range(size - tail, size)} | ({must} if must is not None else set())
    shown: list[int | None] = []
    last = -1
    for index in sorted(kept):
        if index == last + 2:
            shown.append(index - 1)
        elif index > last + 2:
            shown.append(None)
        shown.append(index)
        last = index
    return shown if last == size - 1 else [*shown, None]


def _labels(indices: Sequence[int | None]) -> tuple[str, ...]:
    return tuple("..." if index is None else str(index) for index in indices)
