"""A mesh as text."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from twinkle_mesh.rules.checks import at_least_one

from .drawing import drawing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.text import Text

    from twinkle_mesh.data_parallel import DataParallel

    from .drawing import Drawing


class Picture(str):
    """A picture as text. rich prints it in colours by node, the highlighted rank and its groups in bold."""

    __slots__ = ("_pieces",)
    _pieces: tuple[tuple[str, str], ...]

    def __rich__(self) -> Text:
        from rich.text import Text

        text = Text(no_wrap=True)
        for piece, style in self._pieces:
            text.append(piece, style)
        return text


def describe(mesh: DataParallel, rank: int | None, width: int) -> Picture:
    """Draw a mesh as text; see `DeviceMesh.describe`."""
    width = at_least_one("width", width)
    digits = len(str(mesh.layout.highest))
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
    raise ValueError(f"width={width} is too narrow for this mesh; use {needed}")


def _picture(shown: Drawing, grids: tuple[tuple[str, str], ...], width: int) -> Picture:
    legend = "".join(_wrapped(line, width) for line in shown.legend)
    pieces = ((_wrapped(shown.head, width), "bold"), *grids, *([("\n" + legend, "")] if legend else []))
    picture = Picture("".join(piece for piece, _ in pieces))
    picture._pieces = pieces
    return picture


def _wrapped(line: str, width: int) -> str:
    """Return a line, or several where it is longer than `width`."""
    return "\n".join(wrap(line, width, subsequent_indent="  " if width > 10 else "")) + "\n"


def _grid_pieces(shown: Drawing, limit: int, detail: int) -> Iterator[tuple[str, str]]:
    """Yield pieces of the text of the grids, each with its style.

    Args:
        shown: What to draw.
        limit: Columns of text after which titles are wrapped.
        detail: 2 for names of dims next to the columns, 1 for names above them, 0 for names above and no nodes.
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
    """Return the line above, between or below rows. It is double between cells of different nodes."""
    row = above or below or ()
    if above is not None and below is not None:
        lines = ["═" if _apart(shown, one, other) else " " for one, other in zip(above, below, strict=True)]
        return "├" + "┼".join(line * width for line in lines) + "┤"
    left, middle, right = ("┌", "┬", "┐") if above is None else ("└", "┴", "┘")
    return left + middle.join("─" * width for _ in row) + right
