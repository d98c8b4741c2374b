"""Data parallelism: which ranks see which samples."""

from __future__ import annotations

from .balance import Slices, balanced_slice
from .layout.data_layout import DataLayout
from .layout.factors import merged, product, split
from .layout.ranks import Ranks
from .rules.checks import whole_number
from .value import MeshValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .layout.factors import Factors


class DataParallel(MeshValue):
    """Data ranks. Ranks of one data rank see the same samples; tp, pp, cp and ulysses peers have one data rank."""

    __slots__ = ()

    @property
    def data_world_size(self) -> int:
        """Number of data ranks, which is the number of shares of a batch: dp * fsdp / ulysses."""
        return self.position_count // self.ulysses_size

    def data_rank(self, rank: int | None = None) -> int:
        """Return the data rank of a rank: (dp_rank * fsdp_size + fsdp_rank) // ulysses_size.

        Args:
            rank: A rank of the mesh; None is the rank of the running worker, here and in the other methods.
        """
        return self._data_position(self._coords(rank)) // self.ulysses_size

    def get_slice(self, total_length: int, rank: int | None = None) -> slice:
        """Return the rows of a batch that a rank gets: its part of the balanced split over the data ranks."""
        return balanced_slice(total_length, self.data_world_size, self.data_rank(rank))

    def data_slice(self, total_length: int, data_rank: int) -> slice:
        """Return the rows of a batch that a data rank gets."""
        shares, data_rank = self.data_world_size, whole_number("data_rank", data_rank)
        if not 0 <= data_rank < shares:
            raise ValueError(f"data_rank={data_rank} is outside [0, {shares - 1}]: data_world_size={shares}")
        return balanced_slice(total_length, shares, data_rank)

    def data_slices(self, total_length: int) -> Slices:
        """Return the rows that each data rank gets, by data rank."""
        return Slices(total_length, self.data_world_size)

    def same_data(self, rank: int | None = None) -> Ranks:
        """Return the ranks that see the same samples as `rank`, ascending. `rank` is one of them."""
        return self._ranks_of_share(self.data_rank(rank), {})

    def ulysses_group(self, rank: int | None = None) -> Ranks:
        """Return the ulysses group of `rank`: ranks that split its sequences. They differ from it in data dims only.

        Raises:
            ValueError: This part of a mesh has unequal numbers of ranks at the data positions of the group.
        """
        coords = self._coords(rank)
        place = self._data_position(coords)
        share = place // self.ulysses_size
        axes = self.data_factors({})
        cut = axes and split(axes[0], self.ulysses_size)
        if axes and cut:
            shares, peers = cut
            start = self.layout.place(coords) - Ranks(axes[0], 0)[place] + Ranks(shares, 0)[share]
            return Ranks(merged(sorted(peers, key=lambda factor: -factor[1])), start)
        if self.data_layout is None:
            return self._ranks_of_share(
                share, {dim: coord for dim, coord in enumerate(coords) if dim not in self._data}
            )
        # Arithmetic cannot pair the peers here. The n-th rank of one position is the peer of the n-th of the next.
        equals = self._ranks_by_position({}, 1)
        among = equals[place].index(self.layout.rank(coords))
        first = share * self.ulysses_size
        counts = [len(equals[peer]) for peer in range(first, first + self.ulysses_size)]
        if len(set(counts)) > 1:
            raise ValueError(
                f"ulysses_size={self.ulysses_size}: the ulysses group of rank {self.layout.rank(coords)} needs as many "
                f"ranks at each of its data positions, and they have {counts}: use a part that has whole ulysses groups"
            )
        return Ranks.of(sorted([equals[peer][among] for peer in range(first, first + self.ulysses_size)]))

    @property
    def collect_ranks(self) -> Ranks:
        """One rank for each data rank, by data rank: the lowest one on the last pipeline stage."""
        last = self._stage(self.pp_size - 1)
        axes = self.data_factors(last)
        cut = axes and split(axes[0], self.ulysses_size)
        if cut:
            return Ranks(cut[0], self._free(last)[1])
        if self.data_layout is not None:
            held = self._ranks_by_position(last, self.ulysses_size)
            return Ranks.of([held[share][0] for share in range(self.data_world_size)])
        return Ranks.of([self._ranks_of_share(share, last)[0] for share in range(self.data_world_size)])

    @property
    def pp_first_ranks(self) -> Ranks:
        """The ranks of the first pipeline stage, ascending. Without pp these are all ranks."""
        return self.layout.ascending(*self._free(self._stage(0)))

    @property
    def pp_last_ranks(self) -> Ranks:
        """The ranks of the last pipeline stage, ascending. Without pp these are all ranks."""
        return self.layout.ascending(*self._free(self._stage(self.pp_size - 1)))

    def _stage(self, stage: int) -> dict[int, int]:
        return {self.dim_names.index("pp"): stage} if "pp" in self.dim_names else {}

    def _free(self, fixed: Mapping[int, int]) -> tuple[list[int], int]:
        """Return the dims that are not fixed, and the place at which their coordinates are 0."""
        dims = range(len(self.shape))
        place = self.layout.place([fixed.get(dim, 0) for dim in dims])
        return [dim for dim in dims if dim not in fixed], place

    @property
    def data_positions(self) -> DataLayout:
        """The position in data order of each coordinate."""
        return self.data_layout or DataLayout.of_dims(self.shape, self._data)

    def _data_position(self, coords: Sequence[int]) -> int:
        """Return the position in data order of coordinates."""
        if self.data_layout is not None:
            return self.data_layout.rank(coords)
        shape = self.layout.shape
        place = 0
        for dim in self._data:
            place = place * shape[dim] + coords[dim]
        return place

    def data_factors(self, fixed: Mapping[int, int]) -> tuple[Factors, Factors] | None:
        """Return the factors along which the samples differ, in data order, and the other factors that are not fixed.

        Returns None where they cannot be separated by arithmetic.
        """
        layout = self.layout
        if layout.table is not None:
            return None
        if self.data_layout is None:
            data = [factor for dim in self._data for factor in layout.factors[dim]]
            known = {*self._data, *fixed}
            rest = [factor for dim, held in enumerate(layout.factors) if dim not in known for factor in held]
            return merged(data), tuple(rest)
        pieces = self.data_layout.common_factors(layout)
        if pieces is None:
            return None
        ordered = sorted([(data, size, stride) for _, size, stride, data in pieces if data], reverse=True)
        free = [(size, stride) for dim, size, stride, data in pieces if not data and dim not in fixed]
        return merged([(size, stride) for _, size, stride in ordered]), tuple(free)

    def _ranks_of_share(self, share: int, fixed: Mapping[int, int]) -> Ranks:
        """Return the ranks of one data rank at fixed coordinates of some other dims, ascending."""
        axes = self.data_factors(fixed)
        cut = axes and split(axes[0], self.ulysses_size)
        if axes and cut:
            shares, peers = cut
            place = self._free(fixed)[1]
            start = Ranks(shares, place)[share] if product(shares) > 1 else place
            return Ranks(merged(sorted([*peers, *axes[1]], key=lambda factor: -factor[1])), start)
        if self.data_layout is not None:
            return Ranks.of(self._ranks_by_position(fixed, self.ulysses_size)[share])
        layout = self.layout
        known = {**dict.fromkeys(self._data, 0), **fixed}
        free, _ = self._free(known)
        held: list[int] = []
        for number in range(share * self.ulysses_size, (share + 1) * self.ulysses_size):
            for dim in reversed(self._data):
                number, known[dim] = divmod(number, layout.shape[dim])
            held += layout.ranks(free, layout.place([known.get(dim, 0) for dim in range(len(self.shape))]))
        return Ranks.of(sorted(held))

    def _ranks_by_position(self, fixed: Mapping[int, int], neighbours: int) -> dict[int, list[int]]:
        """Return the ranks of each position in data order, ascending; `neighbours` positions count as one."""
        held: dict[int, list[int]] = {}
        for rank in sorted(self.layout.values()):
            coords = self._coords(rank)
            if all(coords[dim] == coord for dim, coord in fixed.items()):
                held.setdefault(self._data_position(coords) // neighbours, []).append(rank)
        return held
