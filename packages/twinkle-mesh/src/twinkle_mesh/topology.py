"""The nodes of a mesh, and the groups that cross them."""

from __future__ import annotations

from _collections_abc import Iterable  # the same class; importing collections.abc costs milliseconds

from .algebra import rebuilt
from .layout.factors import expand, merged
from .nodes import Nodes
from .rules.checks import at_least_one, whole_number
from .rules.messages import divisors, nearest_divisors, preview
from .rules.rule_error import RuleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeVar

    from .data_parallel import DataParallel
    from .layout.layout import Layout
    from .layout.ranks import Ranks
    from .value import Dims, MeshValue

    Mesh = TypeVar("Mesh", bound=DataParallel)


def on_nodes(mesh: Mesh, nodes: object, ranks_per_node: object, tp_crossing: str) -> Mesh:
    """Return the mesh with its nodes; see `DeviceMesh.with_nodes`."""
    if tp_crossing not in ("warn", "refuse", "allow"):
        raise ValueError(f"tp_crossing={tp_crossing!r} must be one of three; use 'warn', 'refuse' or 'allow'")

    def build(fields: Mapping[str, object]) -> tuple[Mesh, str | None]:
        held = _checked(mesh, fields["nodes"], fields["ranks_per_node"])
        placed = rebuilt(mesh, mesh.layout, mesh.dim_names, mesh.data_positions, views=mesh.views, nodes=held)
        crossed = None if tp_crossing == "allow" else tp_crossing_message(placed)
        if crossed and tp_crossing == "refuse":
            raise ValueError(crossed)
        return placed, crossed

    fields = {"nodes": nodes, "ranks_per_node": ranks_per_node}
    try:
        placed, crossed = build(fields)
    except RuleError as error:
        raise error.fitting(build, fields) from None
    if crossed:
        import warnings

        warnings.warn(crossed, stacklevel=3)
    return placed


def _checked(mesh: MeshValue, nodes: object, ranks_per_node: object) -> Nodes:
    """Return the nodes; raise where they do not hold all ranks of the mesh."""
    if (nodes is None) == (ranks_per_node is None):
        raise ValueError("with_nodes needs either nodes= or ranks_per_node=")
    if nodes is None:
        return Nodes(at_least_one("ranks_per_node", ranks_per_node))
    ranks = mesh.layout.highest + 1
    if not isinstance(nodes, (Nodes, Iterable)):
        count = at_least_one("nodes", nodes)
        if ranks % count:
            problem = f"nodes={count} does not divide the {ranks} ranks evenly"
            raise RuleError(problem, {"nodes": nearest_divisors(ranks, count)}, named=False)
        return Nodes(ranks // count)
    if isinstance(nodes, Nodes):
        sizes = nodes.sizes
    else:
        sizes = tuple([whole_number("the number of ranks on a node", size) for size in nodes])
    if sizes and sum(sizes) < ranks:
        raise ValueError(
            f"nodes=({preview(sizes)}) hold {sum(sizes)} ranks, but the mesh's highest rank is {ranks - 1}; "
            f"use nodes with {ranks} ranks in all"
        )
    return nodes if isinstance(nodes, Nodes) else Nodes(sizes=sizes)


def tp_crossing_message(mesh: MeshValue) -> str | None:
    """Return the message about a tensor parallel group that crosses nodes; None where no group does."""
    if mesh.tp_size == 1 or nodes_spanned(mesh, "tp")[1] == 1:
        return None
    group = crossing_groups(mesh, "tp")[0]
    nodes, layout, dim = nodes_of(mesh), mesh.layout, mesh._dim("tp")
    remedy = "" if layout.factors[dim][-1][1] == 1 else "put tp innermost, or "
    fits: list[int] = []
    for size in divisors(mesh.tp_size)[-2::-1]:
        cut = layout.unflattened(dim, [mesh.tp_size // size, size])
        if nodes_spanned_in(cut, [dim + 1], nodes)[1] == 1:
            fits.append(size)
    return (
        f"tp_size={mesh.tp_size} crosses nodes: group {group!r} lies on {nodes.spanned(group)} of {nodes!r}; "
        f"tensor parallelism belongs inside a node: {remedy}make it smaller ({preview(fits)})"
    )


def nodes_spanned(mesh: MeshValue, dims: Dims) -> tuple[int, int]:
    """Return the fewest and the most nodes that one group along `dims` spans."""
    return nodes_spanned_in(mesh.layout, mesh._dims_in(dims), nodes_of(mesh))


def nodes_spanned_in(layout: Layout, dims: Sequence[int], nodes: Nodes) -> tuple[int, int]:
    """Return the fewest and the most nodes that one group along some dims of a layout spans."""
    even = _evenly(layout, dims, nodes)
    if even is not None:
        return even, even
    others = [factor for dim, held in enumerate(layout.factors) if dim not in dims for factor in held]
    counts = [nodes.spanned(layout.ranks(dims, place)) for place in expand(merged(others), layout.offset)]
    return min(counts), max(counts)


def crossing_groups(mesh: MeshValue, dims: Dims) -> Sequence[Ranks]:
    """Return the groups along `dims` that span more than one node, ascending by first rank."""
    nodes = nodes_of(mesh)
    even = _evenly(mesh.layout, mesh._dims_in(dims), nodes)
    if even is None:
        return tuple([group for group in mesh.groups(dims) if nodes.spanned(group) > 1])
    return mesh.groups(dims) if even > 1 else ()


def nodes_of(mesh: MeshValue) -> Nodes:
    """Return the nodes of a mesh; raise where they are unknown."""
    if mesh.nodes is None:
        raise ValueError("the mesh has no nodes; use mesh.with_nodes(nodes=...) to add them")
    return mesh.nodes


def _evenly(layout: Layout, chosen: Sequence[int], nodes: Nodes) -> int | None:
    """Return the number of nodes that every group spans, if arithmetic can find it; else None."""
    per_node = nodes.ranks_per_node
    if per_node is None or layout.table is not None:
        return None
    reach = layout.offset % per_node
    spans = 1
    for dim, factors in enumerate(layout.factors):
        for size, stride in factors:
            inside = size
            if stride % per_node == 0:
                inside = 1
            elif per_node % stride == 0 and stride * size > per_node:
                inside = per_node // stride
                if size % inside:
                    return None
            reach += (inside - 1) * stride
            if dim in chosen:
                spans *= size // inside
    return spans if reach < per_node else None
