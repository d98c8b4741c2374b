"""A mesh as an SVG document."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from .drawing import drawing

if TYPE_CHECKING:
    from twinkle_mesh.data_parallel import DataParallel

    from .drawing import Drawing, Grid

_COLOURS = ("#cfe8f3", "#fde3b8", "#d5ecc8", "#e8d3ee", "#f6cdc9", "#d9dbf0")
_CELL = 34
_WIDTH = 119
_LABEL = 70
_LINE = 18
_FONT = "ui-monospace, Menlo, Consolas, monospace"


def svg(mesh: DataParallel, rank: int | None) -> str:
    """Draw a mesh as SVG; see `DeviceMesh.svg`."""
    shown = drawing(mesh, rank, max(3, _WIDTH // (len(str(mesh._layout.highest)) + 4)))
    parts: list[str] = []
    cell = max(_CELL, 10 + 8 * len(str(mesh._layout.highest)))
    width, top = 0, 16 + _LINE
    parts.append(_text(16, top - 4, shown.head, 13, weight="bold"))
    for grid in shown.grids:
        if grid is None:
            top += _LINE
            parts.append(_text(16, top, "...", 13))
            continue
        top += 10
        if grid.title:
            top += _LINE
            parts.append(_text(16, top - 4, grid.title, 12, weight="bold"))
        top += _LINE
        parts.append(_text(16 + _LABEL - 8, top - 5, grid.corner, 10, anchor="end", colour="#777"))
        for column, label in enumerate(grid.columns):
            x = 16 + _LABEL + column * cell + cell // 2
            parts.append(_text(x, top - 5, label, 10, anchor="middle", colour="#777"))
        parts += _cells(shown, grid, top, cell)
        top += len(grid.rows) * cell
        width = max(width, 16 + _LABEL + len(grid.columns) * cell + (130 if shown.nodes else 0))
    for line in shown.legend:
        top += _LINE
        parts.append(_text(16, top + 6, line, 11))
    width = max([width, *(16 + 8 * len(line) for line in (shown.head, *shown.legend))]) + 16
    height = top + 24
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' "
        f"xml:space='preserve' fill='#222' font-family='{_FONT}'>\n"
        f"<title>{escape(shown.head)}</title>\n<rect width='100%' height='100%' fill='white'/>\n{body}\n</svg>\n"
    )


def _cells(shown: Drawing, grid: Grid, top: int, cell: int) -> list[str]:
    parts: list[str] = []
    for row, (label, ranks) in enumerate(zip(grid.rows, grid.ranks, strict=True)):
        y = top + row * cell
        parts.append(_text(16 + _LABEL - 8, y + cell // 2 + 4, label, 10, anchor="end", colour="#777"))
        held = sorted({shown.nodes[rank] for rank in ranks if rank is not None and shown.nodes})
        if held:
            label = (
                f"node{'s' if len(held) > 1 else ''} {', '.join(map(str, held[:4]))}{' ...' if len(held) > 4 else ''}"
            )
            parts.append(_text(16 + _LABEL + len(ranks) * cell + 8, y + cell // 2 + 4, label, 10, colour="#777"))
        for column, rank in enumerate(ranks):
            x = 16 + _LABEL + column * cell
            if rank is None:
                parts.append(_text(x + cell // 2, y + cell // 2 + 4, "·", 12, anchor="middle", colour="#777"))
                continue
            fill = _COLOURS[shown.nodes[rank] % len(_COLOURS)] if shown.nodes else "#f2f2f2"
            near = "#222" if rank == shown.rank else "#c33" if rank in shown.marks else "#bbb"
            thick = 3 if rank == shown.rank else 2 if rank in shown.marks else 1
            parts.append(
                f"<rect x='{x + 2}' y='{y + 2}' width='{cell - 4}' height='{cell - 4}' rx='4' fill='{fill}' "
                f"stroke='{near}' stroke-width='{thick}'/>"
            )
            weight = "bold" if rank == shown.rank else ""
            parts.append(_text(x + cell // 2, y + cell // 2 + 4, str(rank), 12, anchor="middle", weight=weight))
            if rank in shown.marks:
                parts.append(_text(x + cell - 5, y + 12, shown.marks[rank], 9, anchor="end", colour="#c33"))
    return parts


def _text(x: int, y: int, text: str, size: int, *, anchor: str = "", weight: str = "", colour: str = "") -> str:
    marks = {"text-anchor": anchor, "font-weight": weight, "fill": colour}
    more = "".join(f" {name}='{value}'" for name, value in marks.items() if value)
    return f"<text x='{x}' y='{y}' font-size='{size}'{more}>{escape(text)}</text>"
