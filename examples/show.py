"""The output of a run: placement, progress, time, bytes and curves."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from libraries import without

try:
    import matplotlib
    from rich.console import Console
    from rich.table import Table
    from tqdm import tqdm
except ModuleNotFoundError as error:
    sys.exit(without(error.name))

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from twinkle import DeviceMesh
    from twinkle_remote import CallRecord, StreamStats

console = Console()


@dataclass
class History:
    """The metrics of a run.

    Attributes:
        mode: Mode of the run.
        losses: Mean loss of each supervised step, in nats per word.
        rewards: Mean reward of each GRPO step.
        reference: Mean reward of the reference's own texts.
        before: A text for each of a few prompts, written before GRPO.
        after: The same after GRPO.
        seconds: Time of each phase on the driver.
        weight_bytes: Bytes of weights that left the actor's workers for the sampler's.
        calls: The record of every call.
        stream: The metrics of the stream of rollouts.
    """

    mode: str
    losses: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    reference: float = 0.0
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    weight_bytes: int = 0
    calls: Sequence[CallRecord] = ()
    stream: StreamStats | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase."""
        before, began = self.seconds.setdefault(name, 0.0), perf_counter()
        yield
        self.seconds[name] = before + perf_counter() - began


def placement(mode: str, meshes: Mapping[str, DeviceMesh]) -> None:
    """Print the mesh of each component."""
    for name, mesh in meshes.items():
        where = "whole, in this process instead of:" if mode == "local" else f"{mesh.world_size} workers"
        console.rule(f"[bold]{name}[/]: {where}", align="left")
        console.print(mesh.describe(), markup=False, highlight=False)


@contextmanager
def progress(name: str, steps: int) -> Iterator[Callable[..., None]]:
    """Show a progress bar; give a function that advances it by a step and shows metrics."""
    with tqdm(total=steps, desc=name, mininterval=0.2 if sys.stderr.isatty() else 10.0) as bar:

        def step(**metrics: float) -> None:
            bar.set_postfix({key: f"{value:.3f}" for key, value in metrics.items()}, refresh=False)
            bar.update()

        yield step


def report(history: History, folder: Path) -> None:
    """Texts, tables and curves of a run."""
    for title, texts in (("before GRPO", history.before), ("after GRPO", history.after)):
        console.rule(f"[bold]{title}[/]", align="left")
        for text in texts:
            console.print(text, markup=False, highlight=False)
    console.rule("[bold]stream of rollouts[/]", align="left")
    console.print(str(history.stream), markup=False, highlight=False)
    console.print(_times(history), _hand_overs(history))
    folder.mkdir(parents=True, exist_ok=True)
    metrics = {"losses": history.losses, "rewards": history.rewards, "seconds": history.seconds}
    (folder / "post_training.json").write_text(json.dumps(metrics))
    curves(history, folder / "post_training.png")
    for name, values in (("loss", history.losses), ("reward", history.rewards)):
        if values:
            console.print(f"{name} {values[0]:.3f} -> {values[-1]:.3f}")
    if history.rewards:
        console.print(f"success: a reward on its way to {history.reference:.3f}, which the reference's own texts get")
    console.print(f"curves: {folder / 'post_training.png'}", soft_wrap=True)


def _times(history: History) -> Table:
    table = Table("where time went", "calls", "s", "s per call", title="Time", title_justify="left")
    for name, seconds in history.seconds.items():
        table.add_row(name, "", f"{seconds:.1f}", "")
    table.add_section()
    for method in ("Actor.learn", "Sampler.sample", "Rewards.grade", "Actor.update"):
        slowest = [call.run_seconds for call in history.calls if call.method == method and call.ranks]
        if slowest:
            mean = sum(slowest) / len(slowest)
            table.add_row(f"{method}, on its slowest worker", str(len(slowest)), f"{sum(slowest):.1f}", f"{mean:.3f}")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _hand_overs(history: History) -> Table:
    def fetched(method: str) -> int:
        return sum(sum(call.worker_fetched.values()) for call in history.calls if call.method == method)

    def driver(method: str, figure: str) -> int:
        return sum(int(getattr(call, figure)) for call in history.calls if call.method.startswith(method))

    rows = (
        ("driver", "actor", "texts", driver("Actor.learn", "driver_sent"), "driver"),
        ("driver", "sampler", "prompts", driver("Sampler.sample", "driver_sent"), "driver"),
        ("sampler", "rewards", "rollouts", fetched("Rewards.grade"), "workers"),
        ("rewards", "actor", "graded rollouts", fetched("Actor.update"), "workers"),
        ("actor", "sampler", "weights", history.weight_bytes, "workers"),
        ("actor", "driver", "loss, reward", driver("Actor.", "driver_fetched"), "driver"),
        ("sampler", "driver", "texts to show", driver("Sampler.sample", "driver_fetched"), "driver"),
    )
    table = Table("from", "to", "what", "bytes", "moved by", title="Hand-overs", title_justify="left")
    for source, target, what, nbytes, mover in rows:
        if history.mode == "local":
            table.add_row(source, target, what, "by reference" if nbytes == 0 else f"{nbytes:,}", "this process")
        else:
            table.add_row(source, target, what, f"{nbytes:,}", mover)
    table.columns[3].justify = "right"
    return table


def curves(history: History, path: Path) -> None:
    """Write loss and reward as a PNG."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    drawn = (
        ("Supervised: loss", "nats per word", history.losses, "tab:blue"),
        ("GRPO: reward", "phrases that are real and new", history.rewards, "tab:orange"),
    )
    for axis, (title, label, values, colour) in zip(axes, drawn, strict=True):
        axis.plot(range(1, len(values) + 1), values, color=colour)
        axis.set(title=title, xlabel="step", ylabel=label)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
