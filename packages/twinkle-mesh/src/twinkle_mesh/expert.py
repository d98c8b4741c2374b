"""The expert view: the ranks of a mesh over the dims of a mixture-of-experts layer.

The rule is Megatron's. In the order of dims, etp is at the position of tp, ep_shard (expert data parallelism) is at the
position of dp, and ep has its own position. Pipeline groups are the same as those of the dense layers.
"""

from __future__ import annotations

from .layout.factors import merged, split
from .layout.layout import Layout
from .rules.order import EXPERT_DIMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from .layout.factors import Factors
    from .value import MeshValue

    Mesh = TypeVar("Mesh", bound=MeshValue)


def expert_view(mesh: Mesh) -> Mesh:
    """Return the mesh (pp, ep_shard, ep, etp) over the ranks of `mesh`."""
    dense = mesh.world_size // mesh.pp_size
    sizes = {"ep": mesh.ep_size, "etp": mesh.etp_size, "ep_shard": dense // (mesh.ep_size * mesh.etp_size)}
    order = mesh.expert_order
    stage = mesh.dim_names.index("pp") if "pp" in mesh.dim_names else None

    def view(base: Layout) -> Layout:
        pp = base.factors[stage] if stage is not None else ()
        rest = base.by_stride([dim for dim in range(len(base.shape)) if dim != stage])
        cut = _cut(rest, [sizes[name] for name in order])
        if cut is not None:
            dims = dict(zip(order, cut, strict=True))
            return Layout((pp, *(dims[name] for name in EXPERT_DIMS)), base.offset)
        # The sizes do not fit the factors: number the ranks of each stage from the lowest up.
        whole = Layout((pp, rest), base.offset)
        shape = (whole.shape[0], *(sizes[name] for name in order))
        by_order = Layout.of_ranks(list(whole.ranks()), shape)
        places = [0, *(order.index(name) + 1 for name in EXPERT_DIMS)]
        return by_order.derive(lambda found: Layout(tuple([found.factors[place] for place in places]), found.offset))

    return type(mesh)(
        mesh.layout.derive(view),
        ("pp", *EXPERT_DIMS),
        device_type=mesh.device_type,
        vpp_size=mesh.vpp_size,
        data_dims=(),
        nodes=mesh.nodes,
    )


def _cut(factors: Factors, sizes: list[int]) -> list[Factors] | None:
    """Cut factors, largest stride first, into dims of the given sizes, outermost first."""
    dims: list[Factors] = []
    for size in reversed(sizes):
        parts = split(factors, size)
        if parts is None:
            return None
        factors, inner = parts
        dims.insert(0, merged(inner))
    return dims
