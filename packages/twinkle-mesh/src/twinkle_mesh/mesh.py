"""The device mesh."""

from __future__ import annotations

from .algebra import Algebra
from .builders import from_ranks, from_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from torch.distributed.device_mesh import (
        DeviceMesh as TorchDeviceMesh,
    )

    from .coordinates import Dims
    from .layout.ranks import Ranks
    from .nodes import Nodes
    from .show.explain import MeshExplanation
    from .show.picture import Picture


class DeviceMesh(Algebra):
    """The layout of ranks over named parallel dims: an immutable, hashable value.

    Build one with `from_sizes` or `from_ranks`. The cost of a mesh does not grow with its number of ranks, except for
    explicit ranks that follow no arithmetic rule.

    Its methods are defined in five modules: dims and their sizes in `named_dims.py`, other attributes in
    `attributes.py`, ranks, coordinates and groups in `coordinates.py`, data ranks and slices in `data_parallel.py`,
    operations that return a new mesh in `algebra.py`.
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
            dp_size: Data parallel replicas; inferred from `world_size` when left out, as is any one size of -1.
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
            ValueError: naming the size, the rule, the values and the nearest sizes that would do.
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

        Ranks along a dim see different samples or the same ones. The field's names say which; other names, of which a
        warning tells, count as the same ones.

        Args:
            ranks: A nested sequence or an array of ranks, with one dim for each name.
            dim_names: Names of the dims, outermost first.
            device_type: As in `from_sizes`, and so are the others.
            ulysses_size: See `from_sizes`.
            ep_size: See `from_sizes`.
            etp_size: See `from_sizes`.
            vpp_size: See `from_sizes`.
            sequence_parallel: See `from_sizes`.
            data_dims: The dims whose ranks see different samples, outermost in data order first.

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

        It has one data rank: ask the mesh itself for slices.
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
            nodes: How many equal nodes there are, or the number of ranks on each.
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

        return nodes_of(self).of(self._layout.rank(self._coords(rank)))

    def nodes_spanned(self, dims: Dims) -> tuple[int, int]:
        """Return the fewest and the most nodes that one group along `dims` spans."""
        from .topology import nodes_spanned

        return nodes_spanned(self, dims)

    def crossing_groups(self, dims: Dims) -> Sequence[Ranks]:
        """Return the groups along `dims` that cross nodes, ascending by first rank."""
        from .topology import crossing_groups

        return crossing_groups(self, dims)

    def explain(self, *, bytes: int = 2**30) -> MeshExplanation:  # noqa: A002 - the unit is the name
        """Return, for each dim, the number of groups, the nodes that one spans and the bytes that one collective moves.

        Args:
            bytes: Size of what one group reduces, gathers or sends. The bytes in the result are estimates.
        """
        from .show.explain import explain

        return explain(self, bytes)

    def describe(self, rank: int | None = None, *, width: int = 110) -> Picture:
        """Return a picture as text: one grid per slice of the leading dims, node boundaries, one rank highlighted.

        Args:
            rank: A rank to highlight together with its groups.
            width: Columns of text to stay within; large meshes are folded, long lines wrapped.

        Raises:
            ValueError: when the folded picture is still wider; the error offers a width.
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

        Every rank of torch's default process group has to call this, also one that is not in the mesh, and all ranks
        have to make their groups in the same order. A group of the same ranks is made once and used again. Ranks may
        each convert their own submesh of one mesh: a submesh knows its `siblings`.

        Raises:
            ValueError: on every rank where the ranks' meshes do not fit together; without a default process group; for
                ranks that it does not have, and a view whose dims do not stand in the mesh's order; with a torch before
                2.13, which sorts the ranks of a group, for ranks that do not ascend along a dim.
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
