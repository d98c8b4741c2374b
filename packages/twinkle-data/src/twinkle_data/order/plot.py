"""An order as a table and as a plot: when each rank gets which sample, and how often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from twinkle_data.cursor import Cursor
from twinkle_data.loading.ranks.data_shard import shards_of

if TYPE_CHECKING:
    from os import PathLike

    from twinkle_data.loader import DataLoader

_BINS = 200


def order_table(loader: DataLoader[Any], *, epochs: int = 1) -> dict[str, Any]:
    """The rows that a loader will deliver from its position on; reads no sample.

    Args:
        loader: A loader over samples by index.
        epochs: Number of epochs; the rest of the current one is the first.

    Returns:
        Arrays with one element for each row that will be delivered: `row` (rows delivered before it), `index`,
        `data_rank`, `epoch` and `valid` (False for fillers).

    Raises:
        TypeError: The loader is over a stream, whose order is known only by reading it.
    """
    len(loader)
    columns: dict[str, list[Any]] = {"row": [], "index": [], "data_rank": [], "epoch": [], "valid": []}
    plan, cursor = loader.plan, Cursor(loader.epoch, loader.position)
    for _ in range(epochs):
        ranks = [plan.steps(cursor, shard) for shard in shards_of(loader.device_mesh)]
        for steps in zip(*ranks, strict=True):
            for data_rank, step in enumerate(steps):
                count = len(step.indices)
                columns["row"] += range(len(columns["row"]), len(columns["row"]) + count)
                columns["index"] += step.indices
                columns["data_rank"] += [data_rank] * count
                columns["epoch"] += [step.epoch] * count
                columns["valid"] += [row not in step.fillers for row in range(count)]
        cursor = Cursor(cursor.epoch + 1)
    return {name: np.array(values) for name, values in columns.items()}


def plot_order(loader: DataLoader[Any], path: str | PathLike[str] | None = None, *, epochs: int = 1) -> Any:
    """Plot the rows that a loader will deliver: the order of samples, and how often each comes.

    Args:
        loader: A loader over samples by index, on the driver.
        path: File to save the plot in; its suffix is the format.
        epochs: Number of epochs; the rest of the current one is the first.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot_order needs matplotlib: pip install matplotlib") from error
    table = order_table(loader, epochs=epochs)
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    order, cover = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
    ranks = int(table["data_rank"].max()) + 1
    valid = table["valid"]
    for data_rank in range(ranks):
        mine = valid & (table["data_rank"] == data_rank)
        order.scatter(table["row"][mine], table["index"][mine], s=5, label=f"data rank {data_rank}")
    if not valid.all():
        order.scatter(table["row"][~valid], table["index"][~valid], s=14, c="black", marker="x", label="filler")
    for edge in np.flatnonzero(np.diff(table["epoch"])):
        order.axvline(table["row"][edge] + 0.5, color="grey", linewidth=0.8)
    order.set(
        title=f"Order, from epoch {loader.epoch}, position {loader.position}",
        xlabel="rows delivered from here on",
        ylabel="index in the dataset",
    )
    if ranks <= 16:
        figure.legend(loc="outside lower center", ncols=6, markerscale=2, fontsize="small", frameon=False)
    top = int(table["index"].max()) + 1
    counts = np.bincount(table["index"][valid], minlength=top)
    edges = np.unique(np.linspace(0, top, min(top, _BINS) + 1).astype(np.int64))
    mean = np.add.reduceat(counts, edges[:-1]) / np.diff(edges)
    cover.stairs(mean, edges, orientation="horizontal", fill=True, color="tab:blue", alpha=0.7)
    cover.set(
        title=f"Coverage: {int((counts > 0).sum())} of {top},\n{counts.min()} to {counts.max()} times each",
        xlabel="times delivered (mean)",
        xlim=(0, max(float(counts.max()), 1.0) * 1.05),
    )
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure
