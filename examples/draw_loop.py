"""Draw the loop over two meshes for the README: docs/pictures/loop-light.svg and loop-dark.svg.

python examples/draw_loop.py docs/pictures
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from twinkle import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOP = (
    "for prompts in loader:",
    "    rollouts = sampler.sample(prompts)",
    "    actor.update(rollouts)",
    "    sync()",
)
ROWS = 8
SIDE, GAP = 62, 12
SAMPLER = DeviceMesh.from_sizes(dp_size=4)
ACTOR = DeviceMesh.from_sizes(dp_size=2, pp_size=2, tp_size=2)


@dataclass(frozen=True)
class Theme:
    """Colours.

    Attributes:
        ink: Colour of text and lines.
        faint: Colour of minor details.
        paper: Colour behind a box.
        data: One colour for each data rank of the actor.
        weights: Colour of the arrow for weights.
    """

    ink: str
    faint: str
    paper: str
    data: tuple[str, str]
    weights: str


THEMES = {
    "light": Theme("#24292f", "#6e7781", "#f6f8fa", ("#0969da", "#8250df"), "#1a7f37"),
    "dark": Theme("#e6edf3", "#8b949e", "#161b22", ("#58a6ff", "#bc8cff"), "#3fb950"),
}


def draw_loop(theme: Theme) -> str:
    """The picture as SVG."""
    parts = [_driver(theme)]
    sampler = {rank: (60.0, 206.0 + rank * (SIDE + GAP)) for rank in range(SAMPLER.world_size)}
    actor = {rank: _place(rank) for rank in range(ACTOR.world_size)}
    parts += [_text(60, 190, "sampler: dp=4", theme.ink, bold=True)]
    parts += [_text(430, 190, "actor: dp=2, pp=2, tp=2", theme.ink, bold=True)]
    share = ROWS // SAMPLER.data_world_size
    readers = {rank: rank * ACTOR.data_world_size // SAMPLER.data_world_size for rank in sampler}
    for rank, target in readers.items():
        x, y = sampler[rank]
        parts.append(_arrow((x + SIDE, y + SIDE / 2), (424, _middle(target)), theme.data[target]))
    for rank, (x, y) in sampler.items():
        target = readers[rank]
        rows = f"rows {rank * share}-{(rank + 1) * share - 1}"
        parts.append(_box(x, y, theme, theme.data[target], (f"dp {rank}", rows)))
    for rank, (x, y) in actor.items():
        where = ACTOR.coordinate(rank)
        parts.append(_box(x, y, theme, theme.data[where["dp"]], (f"pp {where['pp']}", f"tp {where['tp']}")))
    half = ROWS // ACTOR.data_world_size
    for data in range(ACTOR.data_world_size):
        rows = f"dp {data}: rows {data * half}-{(data + 1) * half - 1}"
        parts.append(_text(430 + 4 * (SIDE + GAP) + 4, _middle(data) + 4, rows, theme.data[data]))
    parts += [_text(196, 206, "rollouts, from", theme.faint), _text(196, 222, "worker to worker", theme.faint)]
    parts.append(_weights(theme))
    body = "\n".join(parts)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="860" height="580" viewBox="0 0 860 580"\n'
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">\n'
        f"<title>A loop over two meshes</title>\n{body}\n</svg>\n"
    )


def _place(rank: int) -> tuple[float, float]:
    where = ACTOR.coordinate(rank)
    return 430 + (where["pp"] * 2 + where["tp"]) * (SIDE + GAP), _middle(where["dp"]) - SIDE / 2


def _middle(data_rank: int) -> float:
    """The position of the row of an actor's data rank: between the samplers that it reads from."""
    return 206 + SIDE + GAP / 2 + data_rank * 2 * (SIDE + GAP)


def _driver(theme: Theme) -> str:
    frame = f'<rect x="60" y="20" width="740" height="128" rx="8" fill="{theme.paper}" stroke="{theme.faint}"/>'
    lines = [_text(80, 72 + 20 * at, line, theme.ink) for at, line in enumerate(LOOP)]
    label = _text(780, 46, "your program: rollouts and weights do not come here", theme.faint, anchor="end")
    return "\n".join([frame, _text(80, 46, "driver", theme.ink, bold=True), label, *lines])


def _box(x: float, y: float, theme: Theme, colour: str, lines: Sequence[str]) -> str:
    frame = f'<rect x="{x:g}" y="{y:g}" width="{SIDE}" height="{SIDE}" rx="6" fill="{theme.paper}" stroke="{colour}"'
    label = [
        _text(x + SIDE / 2, y + 27 + 18 * at, line, theme.ink, anchor="middle", size=11)
        for at, line in enumerate(lines)
    ]
    return "\n".join([f'{frame} stroke-width="2"/>', *label])


def _arrow(start: tuple[float, float], end: tuple[float, float], colour: str) -> str:
    (x0, y0), (x1, y1) = start, end
    middle = (x0 + x1) / 2
    line = f'<path d="M{x0:g} {y0:g} C{middle:g} {y0:g} {middle:g} {y1:g} {x1 - 6:g} {y1:g}" fill="none"'
    head = f'<path d="M{x1:g} {y1:g} l-9 -5 v10 z" fill="{colour}"/>'
    return f'{line} stroke="{colour}" stroke-width="2"/>\n{head}'


def _weights(theme: Theme) -> str:
    right, left, low = 430 + 2 * (SIDE + GAP) - GAP / 2, 60 + SIDE / 2, 548
    top, bottom = _middle(1) + SIDE / 2 + 8, 206 + 4 * (SIDE + GAP) - GAP + 6
    line = f'<path d="M{right:g} {top:g} V{low} H{left:g} V{bottom + 9:g}" fill="none" stroke="{theme.weights}"'
    head = f'<path d="M{left:g} {bottom:g} l-5 9 h10 z" fill="{theme.weights}"/>'
    label = _text(
        (left + right) / 2, low + 20, "weights: each shard to the ranks that need it", theme.weights, anchor="middle"
    )
    return f'{line} stroke-width="2" stroke-dasharray="6 4"/>\n{head}\n{label}'


def _text(
    x: float, y: float, text: str, colour: str, *, anchor: str = "start", bold: bool = False, size: int | None = None
) -> str:
    style = (' font-weight="bold"' if bold else "") + ("" if size is None else f' font-size="{size}"')
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}" xml:space="preserve"{style}>{text}</text>'


if __name__ == "__main__":
    for name, theme in THEMES.items():
        path = Path(sys.argv[1]) / f"loop-{name}.svg"
        path.write_text(draw_loop(theme))
        print(path)
