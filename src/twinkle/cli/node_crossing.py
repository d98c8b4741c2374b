"""Sharded dims whose groups cross nodes, and the order or the size that would keep them inside."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from twinkle_mesh import DeviceMesh

_SHARDED = {"fsdp": "parameters are gathered", "cp": "keys and values are gathered", "ep": "tokens are exchanged"}
_ORDERED = ("tp", "cp", "fsdp", "dp", "pp")


def crossing_warnings(
    mesh: DeviceMesh, build: Callable[[Mapping[str, object]], DeviceMesh], given: Mapping[str, object]
) -> Iterator[str]:
    """A warning for each sharded dim of which a group lies on several nodes.

    Args:
        mesh: A mesh with nodes.
        build: Makes the mesh of other arguments.
        given: The arguments of this one: its order, and its sizes by the names of dims.
    """
    for dim, what in _SHARDED.items():
        view = mesh.expert if dim == "ep" else mesh
        if view.size(dim) == 1 or view.nodes_spanned(dim)[1] == 1:
            continue
        group = view.crossing_groups(dim)[0]
        mend = next(_mends(mesh, dim, build, given), None) or "larger nodes"
        yield (
            f"{dim}={view.size(dim)} crosses nodes: group {group!r} lies on {view.nodes_spanned(dim)[1]} nodes, "
            f"and {what} over the network; {mend} would keep them inside"
        )


def _mends(
    mesh: DeviceMesh, dim: str, build: Callable[[Mapping[str, object]], DeviceMesh], given: Mapping[str, object]
) -> Iterator[str]:
    """Options of the command with which no group of the dim, or of tp, crosses nodes; larger sizes first."""
    size = mesh.ep_size if dim == "ep" else mesh.size(dim)
    for smaller in [each for each in range(size, 1, -1) if size % each == 0]:
        sizes: dict[str, object] = {} if smaller == size else {dim: smaller}
        if sizes and dim != "ep":
            sizes["dp"] = mesh.size("dp") * (size // smaller)
        for order in (None, *_orders(mesh, sizes)):
            options = sizes if order is None else {**sizes, "order": order}
            if options and _inside({**given, **options}, dim, build):
                yield " ".join(f"--{name} {value}" for name, value in options.items())


def _orders(mesh: DeviceMesh, sizes: Mapping[str, object]) -> Iterator[str]:
    """All orders of the dims that are larger than 1, the usual ones first."""
    used = [name for name in _ORDERED if mesh.size(name) > 1 or name in sizes]
    innermost = 1 if used[:1] == ["tp"] else 0
    tokens = [*used[:innermost], *(["ep"] if mesh.ep_size > 1 else []), *used[innermost:]]
    yield from map("-".join, permutations(tokens))


def _inside(fields: Mapping[str, object], dim: str, build: Callable[[Mapping[str, object]], DeviceMesh]) -> bool:
    try:
        mesh = build(fields)
    except ValueError:
        return False
    view = mesh.expert if dim == "ep" else mesh
    dims: Sequence[tuple[DeviceMesh, str]] = ((view, dim), (mesh, "tp"))
    return all(one.size(name) == 1 or one.nodes_spanned(name)[1] == 1 for one, name in dims)
