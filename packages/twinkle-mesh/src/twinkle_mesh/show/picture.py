"""A mesh as a picture: grids of ranks, one for each slice of the leading dims."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from textwrap import wrap
from typing import TYPE_CHECKING

from twinkle_mesh.rules.sizes import at_least_one

from .explain import summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.text import Text

    from twinkle_mesh.mesh import DeviceMesh

_MAX_SLICES = 8
_MAX_ROWS = 16
_WRAP = 16


@dataclass(frozen=True)
class Grid:
    """One slice of a mesh: its two innermost dims, or its only one wrapped; None stands for what was folded away."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    ranks: tuple[tuple[int | None, ...], ...]


@dataclass(frozen=True)
class Drawing:
    """What every way of drawing a mesh has in common."""

    head: str
    grids: tuple[Grid | None, ...]
    rank: int | None
    marks: dict[int, str]
    """The letter of the dim along which a rank is in one group with the highlighted one."""
    legend: tuple[str, ...]
    nodes: dict[int, int]


class Picture(str):
    """A picture as text; rich prints it in colour, by node, with the highlighted rank and its groups in bold."""

    __slots__ = ("_pieces",)
    _pieces: tuple[tuple[str, str], ...]

    def __rich__(self) -> Text:
        from rich.text import Text

        text = Text(no_wrap=True)
        for piece, style in self._pieces:
            text.append(piece, style)
        return text


def describe(mesh: DeviceMesh, rank: int | None, width: int) -> Picture:
    """Draw a mesh as text; see `DeviceMesh.describe`."""
    width = at_least_one("width", width)
    digits = len(str(mesh._layout.highest))
    most = max(3, (width - 21) // (digits + 4))
    needed = 0
    for columns, detail in [(count, detail) for detail in (2, 1, 0) for count in range(most, 0, -1)]:
        shown = drawing(mesh, rank, columns)
        grids = tuple(_grid_pieces(shown, width, detail))
        lines = "".join(piece for piece, _ in grids).splitlines()
        widest = max(map(len, lines))
        needed = min(needed or widest, widest)
        if widest <= width:
            return _picture(shown, grids, width)
    raise ValueError(f"width={width} is too narrow for this mesh; {needed} would")


def _picture(shown: Drawing, grids: tuple[tuple[str, str], ...], width: int) -> Picture:
    legend = "".join(_wrapped(line, width) for line in shown.legend)
    pieces = ((_wrapped(shown.head, width), "bold"), *grids, *([("\n" + legend, "")] if legend else []))
    picture = Picture("".join(piece for piece, _ in pieces))
    picture._pieces = pieces
    return picture


def _wrapped(line: str, width: int) -> str:
    """Return a line, or several where it is longer than `width`."""
    return "\n".join(wrap(line, width, subsequent_indent="  " if width > 10 else "")) + "\n"


def drawing(mesh: DeviceMesh, rank: int | None, columns: int) -> Drawing:
    """Decide what a picture of `mesh` shows, in at most so many columns where they can be folded."""
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


def _place(mesh: DeviceMesh, rank: int) -> str:
    coords = " ".join(f"{name}={coord}" for name, coord in mesh.coordinate(rank).items())
    parts = [f"[{rank}]", coords]
    if mesh.data_dims:
        parts.append(f"data rank {mesh.data_rank(rank)} of {mesh.data_world_size}")
    if mesh.nodes is not None:
        parts.append(f"node {mesh.nodes.of(rank)}")
    if mesh.ep_size > 1:
        parts.append("experts: " + " ".join(f"{name}={coord}" for name, coord in mesh.expert.coordinate(rank).items()))
    return "  ".join(part for part in parts if part)


def _letters(names: Sequence[str]) -> dict[str, str]:
    """Give every dim a letter of its own: the first of its last word where that is free."""
    letters: dict[str, str] = {}
    for name in names:
        wanted = name.rsplit("_", 1)[-1] + name + "abcdefghijklmnopqrstuvwxyz"
        letters[name] = next((c for c in wanted if c.isalpha() and c not in letters.values()), "+")
    return letters


def _grids(mesh: DeviceMesh, home: Sequence[int] | None, most_columns: int) -> Iterator[Grid | None]:
    """Yield the grids, with None for a run of them that is folded away; dims of size 1 are left out."""
    layout = mesh._layout
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


def _line(mesh: DeviceMesh, names: Sequence[str], home: Sequence[int] | None, most_columns: int) -> Grid:
    """Wrap the one dim into rows, one for each node where nodes are equal."""
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
    """Return the indices to show, with None for each gap: all of them up to `most`, else both ends and `must`."""
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


def _grid_pieces(shown: Drawing, limit: int, detail: int) -> Iterator[tuple[str, str]]:
    """Yield the text of the grids with a style for each piece of it.

    Args:
        shown: What to draw.
        limit: Columns of text that titles are wrapped to.
        detail: 2 for the names of the dims beside the columns and nodes behind them, 1 for names in lines of their own,
            0 to leave out the numbers of the nodes as well.
    """
    beside = detail > 1
    held = [str(rank) for grid in shown.grids if grid for row in grid.ranks for rank in row if rank is not None]
    width = max(map(len, held)) + (3 if shown.marks else 2)
    labels = [label for grid in shown.grids if grid for label in (*grid.rows, grid.corner if beside else "")]
    margin = max(map(len, labels)) + 2
    for grid in shown.grids:
        if grid is None:
            yield "\n...\n", "dim"
            continue
        if grid.title or len(shown.grids) > 1:
            yield f"\n{_wrapped(grid.title, limit)}", "bold"
        else:
            yield "\n", ""
        yield (grid.corner.rjust(margin) if beside else _wrapped(grid.corner, limit) + " " * margin), "dim"
        yield "".join(f" {label.center(width)}" for label in grid.columns).rstrip() + "\n", "dim"
        above: tuple[int | None, ...] | None = None
        for label, row in zip(grid.rows, grid.ranks, strict=True):
            if above is None or _between(shown, above, row):
                yield " " * margin + _rule(shown, above, row, width) + "\n", "dim"
            yield f"{label.rjust(margin - 1)} ", "dim"
            yield from _row(shown, row, width, with_nodes=detail > 0)
            above = row
        yield " " * margin + _rule(shown, above, None, width) + "\n", "dim"


def _row(shown: Drawing, row: Sequence[int | None], width: int, *, with_nodes: bool) -> Iterator[tuple[str, str]]:
    before: int | None = None
    for column, rank in enumerate(row):
        yield ("│" if column == 0 or not _apart(shown, before, rank) else "║"), "dim"
        if rank is None:
            yield "·".center(width), "dim"
        else:
            text = f" {rank}{shown.marks.get(rank, '')}"
            if shown.marks and rank not in shown.marks:
                text += " "
            if rank == shown.rank:
                text = f"[{rank}]" if not shown.marks else f"[{rank}] "
            text = text.rjust(width) if rank == shown.rank else f"{text} ".rjust(width)
            style = _COLOURS[shown.nodes[rank] % len(_COLOURS)] if shown.nodes else ""
            strong = " reverse bold" if rank == shown.rank else " bold" if rank in shown.marks else ""
            yield text, (style + strong).strip()
        before = rank
    nodes = sorted({shown.nodes[rank] for rank in row if rank is not None and shown.nodes and with_nodes})
    yield "│", "dim"
    if nodes:
        yield f" node {nodes[0]}" if len(nodes) == 1 else f" nodes {', '.join(map(str, nodes[:4]))}", "dim"
        yield (" ..." if len(nodes) > 4 else ""), "dim"
    yield "\n", ""


_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


def _apart(shown: Drawing, one: int | None, other: int | None) -> bool:
    """Tell whether two neighbours are on different nodes."""
    return bool(shown.nodes) and one is not None and other is not None and shown.nodes[one] != shown.nodes[other]


def _between(shown: Drawing, above: Sequence[int | None], below: Sequence[int | None]) -> bool:
    return any(_apart(shown, one, other) for one, other in zip(above, below, strict=True))


def _rule(shown: Drawing, above: Sequence[int | None] | None, below: Sequence[int | None] | None, width: int) -> str:
    """Return the line above, between or below rows; doubled under a cell that is on another node than the next."""
    row = above or below or ()
    if above is not None and below is not None:
        lines = ["═" if _apart(shown, one, other) else " " for one, other in zip(above, below, strict=True)]
        return "├" + "┼".join(line * width for line in lines) + "┤"
    left, middle, right = ("┌", "┬", "┐") if above is None else ("└", "┴", "┘")
    return left + middle.join("─" * width for _ in row) + right
