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
_FILLS = {"label": "#777", "mark": "#c33", "rank": "#222"}
# MeshValue give the light picture, and a style wins over them. It holds for the whole page that embeds the picture.
_DARK = (
    "@media (prefers-color-scheme: dark) { .twinkle-mesh { fill: #ddd } .twinkle-mesh .ground { fill: #1f1f1f } "
    ".twinkle-mesh .label { fill: #aaa } .twinkle-mesh .chosen { stroke: #fff } }"
)
_FONT = "ui-monospace, Menlo, Consolas, monospace"


def svg(mesh: DataParallel, rank: int | None) -> str:
    """Draw a mesh as SVG; see `DeviceMesh.svg`."""
    shown = drawing(mesh, rank, max(3, _WIDTH // (len(str(mesh.layout.highest)) + 4)))
    parts: list[str] = []
    cell = max(_CELL, 10 + 8 * len(str(mesh.layout.highest)))
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
        parts.append(_text(16 + _LABEL - 8, top - 5, grid.corner, 10, anchor="end", kind="label"))
        for column, label in enumerate(grid.columns):
            x = 16 + _LABEL + column * cell + cell // 2
            parts.append(_text(x, top - 5, label, 10, anchor="middle", kind="label"))
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
        f"xml:space='preserve' class='twinkle-mesh' fill='#222' font-family='{_FONT}'>\n"
        f"<title>{escape(shown.head)}</title>\n<style>{_DARK}</style>\n"
        f"<rect class='ground' width='100%' height='100%' fill='white'/>\n{body}\n</svg>\n"
    )


def _cells(shown: Drawing, grid: Grid, top: int, cell: int) -> list[str]:
    parts: list[str] = []
    for row, (label, ranks) in enumerate(zip(grid.rows, grid.ranks, strict=True)):
        y = top + row * cell
        parts.append(_text(16 + _LABEL - 8, y + cell // 2 + 4, label, 10, anchor="end", kind="label"))
        held = sorted({shown.nodes[rank] for rank in ranks if rank is not None and shown.nodes})
        if held:
            label = (
                f"node{'s' if len(held) > 1 else ''} {', '.join(map(str, held[:4]))}{' ...' if len(held) > 4 else ''}"
            )
            parts.append(_text(16 + _LABEL + len(ranks) * cell + 8, y + cell // 2 + 4, label, 10, kind="label"))
        for column, rank in enumerate(ranks):
            x = 16 + _LABEL + column * cell
            if rank is None:
                parts.append(_text(x + cell // 2, y + cell // 2 + 4, "·", 12, anchor="middle", kind="label"))
                continue
            fill = _COLOURS[shown.nodes[rank] % len(_COLOURS)] if shown.nodes else "#f2f2f2"
            near = "#222" if rank == shown.rank else "#c33" if rank in shown.marks else "#bbb"
            chosen = " class='chosen'" if rank == shown.rank else ""
            thick = 3 if rank == shown.rank else 2 if rank in shown.marks else 1
            parts.append(
                f"<rect{chosen} x='{x + 2}' y='{y + 2}' width='{cell - 4}' height='{cell - 4}' rx='4' fill='{fill}' "
                f"stroke='{near}' stroke-width='{thick}'/>"
            )
            weight = "bold" if rank == shown.rank else ""
            parts.append(
                _text(x + cell // 2, y + cell // 2 + 4, str(rank), 12, anchor="middle", weight=weight, kind="rank")
            )
            if rank in shown.marks:
                parts.append(_text(x + cell - 5, y + 12, shown.marks[rank], 9, anchor="end", kind="mark"))
    return parts


def _text(x: int, y: int, text: str, size: int, *, anchor: str = "", weight: str = "", kind: str = "") -> str:
    marks = {"text-anchor": anchor, "font-weight": weight, "class": kind, "fill": _FILLS.get(kind, "")}
    more = "".join(f" {name}='{value}'" for name, value in marks.items() if value)
    return f"<text x='{x}' y='{y}' font-size='{size}'{more}>{escape(text)}</text>"
