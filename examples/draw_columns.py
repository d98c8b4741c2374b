"""Draw a batch whose columns are in four places, and when bytes move: docs/pictures/columns.svg.

python examples/draw_columns.py docs/pictures
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

COLUMNS = ("prompts", "completions", "ids", "mask", "logprobs", "rewards", "ref_logprobs", "advantages")
LEFT, TOP, STEP, LINE = 220, 96, 84, 62
SIDE = 26


class Stage(NamedTuple):
    """A call of a component.

    Attributes:
        call: What the program writes.
        where: Name of its workers.
        makes: The columns that it makes, which stay on its workers.
        reads: The columns that it fetches.
    """

    call: str
    where: str
    makes: tuple[str, ...]
    reads: tuple[str, ...] = ()


STAGES = (
    Stage("sample", "sampler", COLUMNS[:5]),
    Stage("grade", "grader", ("rewards",), ("prompts", "completions")),
    Stage("annotate", "reference", ("ref_logprobs",), ("ids",)),
    Stage("add", "advantage", ("advantages",), ("rewards",)),
    Stage("forward_backward", "actor", (), ("ids", "mask", "logprobs", "ref_logprobs", "advantages")),
)
COLOURS = ("#0969da", "#8250df", "#bc4c00", "#1a7f37")
STYLE = (
    "@media (prefers-color-scheme: dark) { .columns { fill: #e6edf3 } .columns .ground { fill: #0d1117 } "
    ".columns .faint { fill: #8b949e } .columns .line { stroke: #30363d } }"
)


def draw_columns() -> str:
    """The picture as SVG."""
    width, height = LEFT + STEP * len(COLUMNS) + 12, TOP + LINE * len(STAGES) + 54
    made_by = {column: at for at, stage in enumerate(STAGES) for column in stage.makes}
    parts = [_text(20, 34, "the columns of one batch, and the calls that make and read them", bold=True)]
    parts += [_text(_x(name), TOP - 34, name, anchor="middle", size=11) for name in COLUMNS]
    for at, stage in enumerate(STAGES):
        y = TOP + LINE * at
        parts.append(f'<path class="line" d="M20 {y - LINE / 2:g} H{width - 12}" stroke="#d0d7de"/>')
        parts += [_text(20, y - 2, stage.where, bold=True), _text(20, y + 15, f".{stage.call}(batch)", faint=True)]
    for column, first in made_by.items():
        colour, x = COLOURS[first], _x(column)
        readers = [at for at, stage in enumerate(STAGES) if column in stage.reads]
        for number, at in enumerate(readers):
            draw = _beside if number else _down  # from the maker, past an earlier reader
            parts.append(draw(x, TOP + LINE * first, TOP + LINE * at, colour))
        parts.append(_cell(x, TOP + LINE * first, colour, is_made=True))
        parts += [_cell(x, TOP + LINE * at, colour, is_made=False) for at in readers]
    low = TOP + LINE * len(STAGES)
    parts += [
        _cell(40, low, COLOURS[0], is_made=True),
        _text(62, low + 4, "made by this call: the column stays on its workers", size=11),
        _cell(440, low, COLOURS[0], is_made=False),
        _text(462, low + 4, "read by this call: its bytes move now, to these workers", size=11),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'class="columns" fill="#24292f"\nfont-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">\n'
        f"<title>The columns of a batch are in four places</title>\n<style>{STYLE}</style>\n"
        f'<rect class="ground" width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _x(column: str) -> float:
    return LEFT + STEP * (COLUMNS.index(column) + 0.5)


def _cell(x: float, y: float, colour: str, *, is_made: bool) -> str:
    box = f'<rect x="{x - SIDE / 2:g}" y="{y - SIDE / 2:g}" width="{SIDE}" height="{SIDE}" rx="5"'
    return f'{box} fill="{colour if is_made else "none"}" stroke="{colour}" stroke-width="2"/>'


def _down(x: float, top: float, low: float, colour: str) -> str:
    top, low = top + SIDE / 2, low - SIDE / 2 - 1
    line = f'<path d="M{x:g} {top:g} V{low - 7:g}" fill="none" stroke="{colour}" stroke-width="2"/>'
    return f'{line}\n<path d="M{x:g} {low:g} l-5 -8 h10 z" fill="{colour}"/>'


def _beside(x: float, top: float, low: float, colour: str) -> str:
    x = x + SIDE / 2
    line = f'<path d="M{x:g} {top:g} h15 V{low:g} h-7" fill="none" stroke="{colour}" stroke-width="2"/>'
    return f'{line}\n<path d="M{x + 1:g} {low:g} l8 -5 v10 z" fill="{colour}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False, faint: bool = False, size: int = 12
) -> str:
    style = (' font-weight="bold"' if bold else "") + (' class="faint" fill="#6e7781"' if faint else "")
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{style}>{text}</text>'


if __name__ == "__main__":
    path = Path(sys.argv[1]) / "columns.svg"
    path.write_text(draw_columns())
    print(path)
