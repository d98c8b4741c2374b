"""Draw the timelines of a synchronous and a streamed loop with the same time scale.

python examples/draw_schedules.py out   # synchronous.json and streamed.json, which examples/streamed.py --out wrote
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libraries import without

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

PALETTE = ("#4c78a8", "#f2a541", "#59a89c", "#c8586c", "#8d6fb0", "#9aa64b")
TRAINER = "#3d3d45"


@dataclass
class Schedule:
    """The slices of a timeline; seconds since its first one.

    Attributes:
        lanes: For each data rank its rows: begin, seconds, and version of the weights.
        steps: The same for each step of the loop.
        end: End of the last step.
    """

    lanes: Sequence[Sequence[tuple[float, float, int]]]
    steps: Sequence[tuple[float, float, int]]
    end: float

    @property
    def busy(self) -> float:
        """Share of the data ranks' time in which they worked."""
        return sum(seconds for lane in self.lanes for _, seconds, _ in lane) / (self.end * len(self.lanes))


def read_schedule(path: Path) -> Schedule:
    """Read the file that streamed.py wrote."""
    told: dict[str, list[list[Any]]] = json.loads(path.read_text())
    start = min(begin for _, begin, _, _ in told["rows"])
    lanes: dict[int, list[tuple[float, float, int]]] = {}
    for rank, begin, seconds, version in told["rows"]:
        lanes.setdefault(rank, []).append((begin - start, seconds, version))
    steps = [(begin - start, seconds, version) for begin, seconds, version in told["steps"]]
    return Schedule([lanes[rank] for rank in sorted(lanes)], steps, max(begin + seconds for begin, seconds, _ in steps))


def draw_schedules(folder: Path) -> Path:
    """Draw both timelines of a folder; returns the picture."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        sys.exit(without(error.name))

    synchronous, streamed = (read_schedule(folder / f"{name}.json") for name in ("synchronous", "streamed"))
    figure = Figure(figsize=(11, 6.4), layout="constrained", facecolor="white")
    upper, lower = figure.subplots(2, 1, sharex=True)
    _draw(upper, synchronous, "Synchronous: each batch waits for its longest row")
    _draw(lower, streamed, "Streamed: the trainer takes what is finished, and samplers continue")
    upper.set_xlim(0, synchronous.end * 1.005)
    lower.set_xlabel("seconds; each colour is a version of the weights", color=TRAINER, fontsize=11)
    middle = (streamed.end + synchronous.end) / 2
    label = f"the same rows, {synchronous.end / streamed.end:.1f} times as fast"
    lower.annotate(
        label,
        (streamed.end, len(streamed.lanes) / 2),
        (middle, len(streamed.lanes) / 2),
        ha="center",
        va="center",
        fontsize=13,
        color=TRAINER,
        arrowprops={"arrowstyle": "->", "color": TRAINER, "shrinkB": 6},
    )
    path = folder / "schedules.png"
    figure.savefig(path, dpi=150)
    return path


def _draw(axes: Axes, schedule: Schedule, title: str) -> None:
    for row, lane in enumerate(schedule.lanes):
        _bars(axes, lane, len(schedule.lanes) - row, 0.86)
    _bars(axes, schedule.steps, -0.9, 1.9)
    trained = sum(seconds for _, seconds, _ in schedule.steps) / schedule.end
    figures = f"{schedule.end:.1f} s; samplers busy {schedule.busy:.0%}, trainer {trained:.0%}"
    axes.set_title(title, loc="left", fontsize=12, color=TRAINER)
    axes.set_title(figures, loc="right", fontsize=11, color=TRAINER)
    axes.set_yticks([-0.9, (len(schedule.lanes) + 1) / 2], ["trainer", "samplers"], color=TRAINER, fontsize=11)
    axes.set_ylim(-2.1, len(schedule.lanes) + 0.8)
    axes.tick_params(length=0)
    axes.tick_params(axis="x", colors=TRAINER, length=3, labelbottom=True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c9c9cf")


def _bars(axes: Axes, slices: Sequence[tuple[float, float, int]], centre: float, height: float) -> None:
    """A lane; colours show the version of the weights."""
    axes.broken_barh(
        [(begin, seconds) for begin, seconds, _ in slices],
        (centre - height / 2, height),
        facecolors=[PALETTE[version % len(PALETTE)] for _, _, version in slices],
        edgecolor="white",
        linewidth=0.4,
    )


if __name__ == "__main__":
    print(draw_schedules(Path(sys.argv[1])))
