"""The device mesh."""

from __future__ import annotations

from . import algebra
from .builders import from_ranks, from_sizes
from .data_parallel import DataParallel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from torch.distributed.device_mesh import (
        DeviceMesh as TorchDeviceMesh,
    )

    from .layout.ranks import Ranks
    from .nodes import Nodes
    from .show.explain import MeshExplanation
    from .show.picture import Picture
    from .value import Dims


class DeviceMesh(DataParallel):
    """The layout of ranks over named parallel dims: an immutable, hashable value.

    Build a mesh with `from_sizes` or `from_ranks`. Its cost does not grow with the number of ranks, except for explicit
    ranks that follow no arithmetic rule.

    Its dims, attributes, coordinates and groups are those of `MeshValue`, its data ranks and slices those of
    `DataParallel`.

    Operations return a new mesh. Each rank gets the same samples as before. If ranks are left out, the data ranks are
    numbered again from 0.

    Only a new name can change the samples of a rank. If `rename` or `unflatten` names a dim dp_replicate, dp, dp_shard
    or fsdp, it splits the data. If a dim gets the name pp, cp, tp, ep or etp, its ranks get the same samples, and a
    warning says how many data ranks are lost.

    Ulysses, experts, virtual stages, sequence parallelism and views are kept if the dims that they need are kept.
    Otherwise they are dropped.
    """

    __slots__ = ()

    @classmethod
    def from_sizes(
        cls,
        *,
        world_size: int | None = None,
        dp_size: int | None = None,
        fsdp_size: int | None = None,
        tp_size: int | None = None,
        pp_size: int | None = None,
        ulysses_size: int | None = None,
        cp_size: int | None = None,
        ep_size: int | None = None,
        etp_size: int | None = None,
        vpp_size: int | None = None,
        device_type: str = "cuda",
        sequence_parallel: bool = False,
        order: str | None = None,
    ) -> Self:
        """Build a mesh of ranks 0 to world_size - 1 from the sizes of its dims.

        Args:
            world_size: Number of ranks; the product of the sizes when None (or 1 while they multiply to more).
            dp_size: Data parallel replicas; inferred from `world_size` when left out. One size of -1 is inferred too.
            fsdp_size: Fully sharded data parallel ranks.
            tp_size: Tensor parallel ranks.
            pp_size: Pipeline stages.
            ulysses_size: Ranks among dp * fsdp that share their samples and split the sequence; not a dim.
            cp_size: Context parallel ranks.
            ep_size: Expert parallel ranks; see `expert`.
            etp_size: Tensor parallel ranks of the experts; `tp_size` when None, as in Megatron.
            vpp_size: Virtual stages per pipeline rank; needs `pp_size` > 1.
            device_type: torch's name of the device: "cuda", "cpu", "npu", ...
            sequence_parallel: Whether activations are split over tp; needs `tp_size` > 1.
            order: Dims innermost first in Megatron's spelling, such as "tp-cp-ep-dp-pp"; by default the dims are,
                outermost first, fsdp, pp, dp, cp, tp.

        Raises:
            ValueError: naming the size, the rule, the values and the nearest sizes to use.
        """
        fields = {
            "world_size": world_size,
            "dp_size": dp_size,
            "fsdp_size": fsdp_size,
            "tp_size": tp_size,
            "pp_size": pp_size,
            "ulysses_size": ulysses_size,
            "cp_size": cp_size,
            "ep_size": ep_size,
            "etp_size": etp_size,
            "vpp_size": vpp_size,
            "device_type": device_type,
            "sequence_parallel": sequence_parallel,
            "order": order,
        }
        return from_sizes(cls, fields)

    @classmethod
    def from_ranks(
        cls,
        ranks: object,
        dim_names: Dims,
        *,
        device_type: str = "cuda",
        ulysses_size: int | None = None,
        ep_size: int | None = None,
        etp_size: int | None = None,
        vpp_size: int | None = None,
        sequence_parallel: bool = False,
        data_dims: Dims | None = None,
    ) -> Self:
        """Build a mesh from explicit ranks.

        Ranks along a dim get different samples or the same samples. The common names of dims decide this. A dim with
        another name gets the same samples, with a warning.

        Args:
            ranks: A nested sequence or an array of ranks, with one dim for each name.
            dim_names: Names of the dims, outermost first.
            device_type: See `from_sizes`.
            ulysses_size: See `from_sizes`.
            ep_size: See `from_sizes`.
            etp_size: See `from_sizes`.
            vpp_size: See `from_sizes`.
            sequence_parallel: See `from_sizes`.
            data_dims: The dims whose ranks get different samples, outermost in data order first.

        Raises:
            ValueError: for ragged, repeated, negative or missing ranks, and for what `from_sizes` refuses.
        """
        fields = {
            "device_type": device_type,
            "ulysses_size": ulysses_size,
            "ep_size": ep_size,
            "etp_size": etp_size,
            "vpp_size": vpp_size,
            "sequence_parallel": sequence_parallel,
            "data_dims": data_dims,
        }
        return from_ranks(cls, ranks, dim_names, fields)

    @property
    def expert(self) -> Self:
        """The ranks over the expert dims pp, ep_shard (Megatron's expert data parallelism), ep and etp.

        It has one data rank. For slices use the mesh itself.
        """
        from .expert import expert_view

        return expert_view(self)

    def with_nodes(
        self,
        nodes: Nodes | int | Sequence[int] | None = None,
        *,
        ranks_per_node: int | None = None,
        tp_crossing: str = "warn",
    ) -> Self:
        """Return the mesh with nodes: consecutive blocks of ranks from rank 0 on.

        Args:
            nodes: The number of equal nodes, or the number of ranks on each node.
            ranks_per_node: How many ranks each node has, in place of `nodes`.
            tp_crossing: What happens when a tensor parallel group crosses nodes: "warn", "refuse" or "allow".

        Raises:
            ValueError: when the nodes do not hold the mesh's ranks, or tp crosses nodes and is refused.
        """
        from .topology import on_nodes

        return on_nodes(self, nodes, ranks_per_node, tp_crossing)

    def node(self, rank: int | None = None) -> int:
        """Return the node that a rank is on."""
        from .topology import nodes_of

        return nodes_of(self).of(self.layout.rank(self._coords(rank)))

    def nodes_spanned(self, dims: Dims) -> tuple[int, int]:
        """Return the fewest and the most nodes that one group along `dims` spans."""
        from .topology import nodes_spanned

        return nodes_spanned(self, dims)

    def crossing_groups(self, dims: Dims) -> Sequence[Ranks]:
        """Return the groups along `dims` that cross nodes, ascending by first rank."""
        from .topology import crossing_groups

        return crossing_groups(self, dims)

    def submesh(self, dims: Dims, rank: int | None = None) -> Self:
        """Return the mesh of `dims` that holds `rank`: `mesh.submesh(("dp", "tp"), 5)`.

        Args:
            dims: Names of dims or views, in the order of the new mesh; a view becomes a dim.
            rank: Any rank of the new mesh; None is the rank of the running worker.
        """
        return algebra.submesh(self, dims, rank)

    @property
    def siblings(self) -> tuple[Self, ...]:
        """The submeshes that the ranks of the whole mesh get by the same operations, this one too, by first rank."""
        return algebra.siblings(self)

    def __getitem__(self, dims: Dims) -> Self:
        """Return the submesh that holds the mesh's first rank: `mesh["dp", "tp"]`."""
        return self.submesh(dims, self.ranks[0])

    def at(self, **coords: int) -> Self:
        """Return the mesh of the other dims at the given coordinates: `mesh.at(pp=1)`."""
        places = self._given_coords(coords)
        kept = {self.dim_names[dim]: (dim,) for dim, place in enumerate(places) if place is None}
        return algebra.selected(self, kept, [place or 0 for place in places])

    def flatten(self, dims: Dims | None = None, name: str | None = None) -> Self:
        """Join dims into one, row-major as listed: `mesh.flatten(("dp", "cp"))`.

        The new dim is at the position of the first joined dim.

        Args:
            dims: Names of dims; all of them when None.
            name: The new dim's name; the old ones joined by "_" when None.
        """
        return algebra.flatten(self, dims, name)

    def unflatten(self, dim: str, sizes: Mapping[str, int]) -> Self:
        """Cut a dim into several, outermost first: `mesh.unflatten("dp", {"dp_replicate": 2, "dp_shard": -1})`.

        Raises:
            ValueError: when the sizes, of which one may be -1, do not multiply to the dim's size.
        """
        return algebra.unflatten(self, dim, sizes)

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """Give dims new names: `mesh.rename(dp="replica")` or `mesh.rename({"dp": "replica"})`.

        Attributes of a dim, such as `sequence_parallel` of tp, are restored with its name.
        """
        return algebra.rename(self, {**(names or {}), **more})

    def transpose(self, *dims: str) -> Self:
        """Reorder the dims; without arguments, reverse them. Each rank keeps its coordinates."""
        return algebra.transpose(self, dims)

    def concat(self, *others: Self, dim: str) -> Self:
        """Put meshes of equal shapes and disjoint ranks one after the other: `a.concat(b, dim="dp")`.

        The meshes get different samples along a dim that splits the data. A new dim, or a dim of size 1, splits the
        data if its name is dp_replicate, dp, dp_shard or fsdp.

        Args:
            others: Meshes that differ from this one only in their ranks.
            dim: A dim of the meshes, which then grows, or a new dim, which becomes the outermost.
        """
        return algebra.concat((self, *others), dim)

    def with_views(self, **views: Dims) -> Self:
        """Add names for flattened dims, readable as `mesh["dp"]`: `with_views(dp=("dp_replicate", "dp_shard"))`."""
        return algebra.with_views(self, views)

    def explain(self, *, bytes: int = 2**30) -> MeshExplanation:  # noqa: A002 - the unit is the name
        """Return, for each dim, the number of groups, the nodes that one spans and the bytes that one collective moves.

        Args:
            bytes: Bytes that one group reduces, gathers or sends. The bytes in the result are estimates.
        """
        from .show.explain import explain

        return explain(self, bytes)

    def describe(self, rank: int | None = None, *, width: int = 110) -> Picture:
        """Return a picture as text: one grid per slice of the leading dims, node boundaries, one rank highlighted.

        Args:
            rank: A rank to highlight together with its groups.
            width: Columns of text to stay within; large meshes are folded, long lines wrapped.

        Raises:
            ValueError: when the folded picture is still wider; the error gives a width to use.
        """
        from .show.picture import describe

        return describe(self, rank, width)

    def svg(self, rank: int | None = None) -> str:
        """Return the picture of `describe` as an SVG document."""
        from .show.svg import svg

        return svg(self, rank)

    def _repr_svg_(self) -> str:
        """The picture that a notebook shows of a mesh."""
        return self.svg()

    def to_torch(self) -> TorchDeviceMesh:
        """Build a `torch.distributed.DeviceMesh` of the same ranks, with the views as flattened dims.

        Every rank of torch's default process group must call this, also a rank outside the mesh. All ranks must make
        their groups in the same order. A group of the same ranks is made once and used again. Each rank may convert its
        own submesh of one mesh: a submesh knows its `siblings`.

        Raises:
            ValueError: on every rank when the ranks' meshes do not fit together; without a default process group, or
                for ranks that it does not have; for a view whose dims are not in the mesh's order; for ranks that do
                not ascend along a dim with torch before 2.12, which sorts the ranks of a group.
        """
        from .interop.torch import to_torch

        return to_torch(self)

    @staticmethod
    def from_torch(torch_mesh: TorchDeviceMesh, *, data_dims: Dims | None = None) -> DeviceMesh:
        """Return the mesh with the ranks, dims and flattened dims of torch's mesh.

        Args:
            torch_mesh: torch's mesh.
            data_dims: As in `from_ranks`, where the names of the dims are not the field's.

        Raises:
            ValueError: for a mesh without names, or data dims that it does not have.
        """
        from .interop.torch import from_torch

        return from_torch(DeviceMesh, torch_mesh, data_dims)

    def to_dict(self) -> dict[str, object]:
        """Return the mesh as JSON values; `from_dict` gives an equal mesh back."""
        from .interop.json import to_dict

        return to_dict(self)

    @staticmethod
    def from_dict(state: Mapping[str, object]) -> DeviceMesh:
        """Build the mesh that `to_dict` described.

        Raises:
            ValueError: when the state is not one that `to_dict` returns.
        """
        from .interop.json import from_dict

        return from_dict(DeviceMesh, state)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        from .show.mesh_repr import mesh_repr

        return mesh_repr(self)
