"""The cost of communication in a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from twinkle_mesh.expert import expert_view
from twinkle_mesh.layout.factors import split
from twinkle_mesh.layout.layout import Layout
from twinkle_mesh.rules.checks import whole_number
from twinkle_mesh.topology import nodes_spanned, nodes_spanned_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_mesh.data_parallel import DataParallel

_COLLECTIVES = {
    "fsdp": "all-gather",
    "dp_shard": "all-gather",
    "ep_shard": "all-gather",
    "efsdp": "all-gather",
    "cp": "all-gather",
    "pp": "send",
    "ep": "all-to-all",
    "ulysses": "all-to-all",
}


class DimReport(NamedTuple):
    """The groups of one dim, and an estimate of the bytes that one collective over them moves."""

    dim: str
    size: int
    groups: int
    nodes: tuple[int, int] | None
    """The fewest and the most nodes that one group spans; None where nodes are unknown."""
    collective: str
    bytes_per_rank: int
    """Estimated bytes that each rank sends."""
    bytes_total: int
    """Estimated bytes that all ranks send."""


@dataclass(frozen=True)
class MeshExplanation:
    """A report on each dim, also on ulysses and the expert dims where they are used; `str()` makes a table."""

    summary: str
    dims: tuple[DimReport, ...]
    bytes: int
    """Bytes that one group reduces, gathers or sends, as given."""

    def __getitem__(self, dim: str) -> DimReport:
        for report in self.dims:
            if report.dim == dim:
                return report
        raise KeyError(dim)

    def __iter__(self) -> Iterator[DimReport]:
        return iter(self.dims)

    def __str__(self) -> str:
        head = ("dim", "size", "groups", "nodes/group", "collective", "bytes/rank (est.)", "all ranks (est.)")
        rows = [head, *map(_row, self.dims)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = [self.summary]
        for row in rows:
            cells = [
                cell.ljust(width) if column in (0, 4) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        lines.append(
            f"Bytes are estimates: ring algorithms over {_amount(self.bytes)} in each group, nothing overlapped."
        )
        return "\n".join(lines)


def explain(mesh: DataParallel, size: int) -> MeshExplanation:
    """Report on a mesh; see `DeviceMesh.explain`."""
    moved = whole_number("bytes", size)
    if moved < 0:
        raise ValueError(f"bytes={moved} must be at least 0; use 0")
    reports = [_report(mesh, dim, moved) for dim in mesh.dim_names]
    if mesh.ulysses_size > 1:
        reports.append(_figures("ulysses", mesh.ulysses_size, mesh.world_size, _ulysses_nodes(mesh), moved))
    if mesh.ep_size > 1:
        experts = expert_view(mesh)
        reports += [_report(experts, dim, moved) for dim in experts.dim_names if dim != "pp"]
    return MeshExplanation(summary(mesh), tuple(reports), moved)


def summary(mesh: DataParallel) -> str:
    """Return a mesh in one line."""
    parts = [mesh._sizes() or "no dims", f"{_plural(mesh.world_size, 'rank')}"]
    if mesh.nodes is not None:
        held = "unequal nodes" if mesh.nodes.sizes else f"nodes of {mesh.nodes.ranks_per_node}"
        parts.append(f"on {nodes_spanned(mesh, mesh.dim_names)[1]} {held}")
    if mesh.data_dims:
        parts.append(f"data world size {mesh.data_world_size}")
    sizes = {"ulysses": mesh.ulysses_size, "ep": mesh.ep_size, "etp": mesh.etp_size, "vpp": mesh.vpp_size}
    parts += [f"{name}={size}" for name, size in sizes.items() if size > 1 and (name != "etp" or mesh.ep_size > 1)]
    if mesh.sequence_parallel:
        parts.append("sequence parallel")
    return " · ".join((*parts, mesh.device_type))


def _report(mesh: DataParallel, dim: str, moved: int) -> DimReport:
    nodes = None if mesh.nodes is None else nodes_spanned(mesh, dim)
    return _figures(dim, mesh.size(dim), mesh.world_size, nodes, moved)


def _figures(dim: str, size: int, world: int, nodes: tuple[int, int] | None, moved: int) -> DimReport:
    groups = world // size
    collective = _COLLECTIVES.get(dim, "all-reduce")
    if collective == "send":
        # The last stage does not send.
        return DimReport(dim, size, groups, nodes, collective, moved if size > 1 else 0, (size - 1) * moved * groups)
    rounds = 2 if collective == "all-reduce" else 1
    sent = rounds * (size - 1) * moved // size
    return DimReport(dim, size, groups, nodes, collective, sent, sent * world)


def _ulysses_nodes(mesh: DataParallel) -> tuple[int, int] | None:
    """Return the fewest and the most nodes that one ulysses group spans; None where nodes are unknown."""
    if mesh.nodes is None:
        return None
    axes = mesh.data_factors({})
    cut = axes and split(axes[0], mesh.ulysses_size)
    if axes and cut:
        return nodes_spanned_in(Layout((*cut, axes[1]), mesh.layout.offset), [1], mesh.nodes)
    counts = [mesh.nodes.spanned(mesh.ulysses_group(rank)) for rank in mesh.ranks]
    return min(counts), max(counts)


def _row(report: DimReport) -> Sequence[str]:
    if report.nodes is None:
        nodes = "unknown"
    else:
        fewest, most = report.nodes
        nodes = str(most) if fewest == most else f"{fewest} to {most}"
    return (
        report.dim,
        str(report.size),
        str(report.groups),
        nodes,
        report.collective,
        _amount(report.bytes_per_rank),
        _amount(report.bytes_total),
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _amount(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes any amount")
