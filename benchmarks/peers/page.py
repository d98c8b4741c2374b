"""The picture and the table of `docs/performance.md`, out of `out/peers.json`: python benchmarks/peers/page.py"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from environments import ROOT
from matplotlib.figure import Figure
from run import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = ROOT / "docs/performance.md"
PICTURE = ROOT / "docs/peers.png"
BEGIN, END = "<!-- out/peers.md begins -->\n", "<!-- out/peers.md ends -->\n"
INK, GOOD, BAD, AIM = "#333333", "#2a7f62", "#b5532a", "#1f4e9c"


def draw(rows: list[dict[str, Any]]) -> None:
    """Draw the ratio of each row on a logarithmic axis, with its spread and the figure to reach."""
    figure = Figure(figsize=(11, 1.4 + 0.34 * len(rows)), layout="constrained", facecolor="white")
    axes: Axes = figure.subplots()
    for place, row in enumerate(rows):
        low, high = row["spread"]
        aim = row["at_most"]
        colour = INK if aim is None else GOOD if row["ratio"] <= aim else BAD
        axes.plot([low, high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
        axes.plot(row["ratio"], place, "o", color=colour, markersize=7)
        if aim is not None:
            axes.plot([aim, aim], [place - 0.36, place + 0.36], color=AIM, linewidth=2)
    axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [f"{row['row']}  |  {row['peer']}" for row in rows], color=INK, fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.tick_params(length=0, labelcolor=INK)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("ours / theirs, the less the better: median, spread; a bar is the figure to reach", color=INK)
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Write the picture, and the table between its two marks."""
    rows = json.loads((ROOT / "out/peers.json").read_text())["rows"]
    rows = [row for row in rows if not (row["left_out"] or "").startswith("failed")]
    draw([row for row in rows if row["ratio"] is not None])
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")


if __name__ == "__main__":
    main()
