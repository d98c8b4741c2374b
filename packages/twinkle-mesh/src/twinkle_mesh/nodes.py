"""Which ranks share a node, and which groups cross nodes."""

from __future__ import annotations

from _collections_abc import Sequence  # the same class; importing collections.abc costs milliseconds
from bisect import bisect_right

from ._messages import divisors, listed, nearest_divisors, preview, would
from .sizes import at_least_one

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .layout import Layout
    from .lookup import Dims
    from .mesh import DeviceMesh
    from .ranks import Ranks


class Nodes:
    """Nodes as consecutive blocks of ranks from rank 0 on: equal blocks by their size, unequal ones by all sizes."""

    __slots__ = ("_starts", "ranks_per_node", "sizes")

    ranks_per_node: int | None
    """Ranks on each node, where nodes are equal."""
    sizes: tuple[int, ...]
    """Ranks on each node, where nodes are unequal."""
    _starts: tuple[int, ...]

    def __init__(self, ranks_per_node: int | None = None, sizes: Iterable[int] = ()) -> None:
        listed = tuple([at_least_one("the number of ranks on a node", size) for size in sizes])
        if (ranks_per_node is None) == (not listed):
            raise ValueError("nodes need either ranks_per_node= or the sizes of all nodes")
        starts = [0]
        for size in listed:
            starts.append(starts[-1] + size)
        per_node = None if ranks_per_node is None else at_least_one("ranks_per_node", ranks_per_node)
        object.__setattr__(self, "ranks_per_node", per_node)
        object.__setattr__(self, "sizes", listed)
        object.__setattr__(self, "_starts", tuple(starts))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"nodes do not change: {name} cannot be set")

    def of(self, rank: int) -> int:
        """Return the node of a rank, in [0, number of nodes - 1]."""
        if self.ranks_per_node is not None:
            return rank // self.ranks_per_node
        if not 0 <= rank < self._starts[-1]:
            raise ValueError(f"rank={rank} is on no node: the nodes have ({preview(self.sizes)}) ranks")
        return bisect_right(self._starts, rank) - 1

    def __reduce__(self) -> tuple[object, ...]:
        return Nodes.from_json, (self.to_json(),)

    def spanned(self, ranks: Iterable[int]) -> int:
        """Return how many nodes some ranks span."""
        return len({self.of(rank) for rank in ranks})

    def to_json(self) -> int | list[int]:
        """Return the ranks per node, or the sizes of unequal nodes."""
        return list(self.sizes) if self.ranks_per_node is None else self.ranks_per_node

    @classmethod
    def from_json(cls, value: int | list[int]) -> Nodes:
        """Read what `to_json` returned."""
        return cls(sizes=value) if isinstance(value, list) else cls(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Nodes):
            return NotImplemented
        return (self.ranks_per_node, self.sizes) == (other.ranks_per_node, other.sizes)

    def __hash__(self) -> int:
        return hash((self.ranks_per_node, self.sizes))

    def __repr__(self) -> str:
        if self.ranks_per_node is None:
            return f"Nodes(sizes=({listed(self.sizes)}))"
        return f"Nodes(ranks_per_node={self.ranks_per_node})"


def on_nodes(mesh: DeviceMesh, nodes: Nodes | int | Sequence[int] | None, ranks_per_node: int | None) -> Nodes:
    """Return checked nodes for a mesh; see `DeviceMesh.with_nodes`."""
    ranks = mesh._layout.highest + 1
    if (nodes is None) == (ranks_per_node is None):
        raise ValueError("with_nodes needs either nodes= or ranks_per_node=")
    if isinstance(nodes, Nodes):
        found = nodes
    elif nodes is None:
        found = Nodes(ranks_per_node)
    elif isinstance(nodes, Sequence):
        found = Nodes(sizes=nodes)
    else:
        count = at_least_one("nodes", nodes)
        if ranks % count:
            near = nearest_divisors(ranks, count)
            raise ValueError(f"nodes={count} does not divide the {ranks} ranks evenly; {would(near)}")
        found = Nodes(ranks // count)
    if found.sizes and sum(found.sizes) < ranks:
        raise ValueError(
            f"nodes=({preview(found.sizes)}) hold {sum(found.sizes)} ranks, but the mesh's highest rank is "
            f"{ranks - 1}; nodes with {ranks} ranks in all would do"
        )
    return found


def check_crossing(mesh: DeviceMesh, tp_crossing: str) -> None:
    """Warn of tensor parallel groups that cross nodes, or refuse them."""
    if tp_crossing not in ("warn", "refuse", "allow"):
        raise ValueError(f"tp_crossing={tp_crossing!r} must be one of three; 'warn', 'refuse' or 'allow' would")
    if tp_crossing == "allow" or mesh.tp_size == 1 or spanned(mesh, "tp")[1] == 1:
        return
    group = crossing(mesh, "tp")[0]
    lies_on = known(mesh).spanned(group)
    factors = mesh._layout.factors[mesh._dim("tp")]
    remedy = "" if factors[-1][1] == 1 else "put tp innermost, or "
    smaller = preview(divisors(mesh.tp_size)[-2::-1])
    message = (
        f"tp_size={mesh.tp_size} crosses nodes: group {group!r} lies on {lies_on} of {mesh.nodes!r}; "
        f"tensor parallelism belongs inside a node: {remedy}make it smaller ({smaller})"
    )
    if tp_crossing == "refuse":
        raise ValueError(message)
    import warnings

    warnings.warn(message, stacklevel=3)


def spanned(mesh: DeviceMesh, dims: Dims) -> tuple[int, int]:
    """Return the fewest and the most nodes that one group along `dims` spans."""
    nodes = known(mesh)
    even = _evenly(mesh._layout, mesh._chosen(dims), nodes)
    if even is not None:
        return even, even
    counts = [nodes.spanned(group) for group in mesh.groups(dims)]
    return min(counts), max(counts)


def crossing(mesh: DeviceMesh, dims: Dims) -> Sequence[Ranks]:
    """Return the groups along `dims` that span more than one node, ascending by first rank."""
    nodes = known(mesh)
    even = _evenly(mesh._layout, mesh._chosen(dims), nodes)
    if even is None:
        return tuple([group for group in mesh.groups(dims) if nodes.spanned(group) > 1])
    return mesh.groups(dims) if even > 1 else ()


def known(mesh: DeviceMesh) -> Nodes:
    """Return the nodes of a mesh that knows them."""
    if mesh.nodes is None:
        raise ValueError("the mesh does not know its nodes; mesh.with_nodes(nodes=...) would tell it")
    return mesh.nodes


def _evenly(layout: Layout, chosen: Sequence[int], nodes: Nodes) -> int | None:
    """Return the nodes that every group spans, where every step keeps the node or the place on it."""
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
