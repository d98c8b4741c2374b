"""Data parallelism: which ranks see which samples."""

from __future__ import annotations

from .balance import Slices, balanced_slice
from .coordinates import Coordinates
from .layout.data_layout import DataLayout
from .layout.factors import merged, product, split
from .layout.ranks import Ranks
from .rules.sizes import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .layout.factors import Factors


class DataParallel(Coordinates):
    """Data ranks: ranks that differ in a data dim see different samples, all others see the same."""

    __slots__ = ()

    @property
    def data_world_size(self) -> int:
        """How many different shares of a batch there are: dp * fsdp / ulysses."""
        return self._data_places // self.ulysses_size

    def data_rank(self, rank: int | None = None) -> int:
        """Return which share of a batch a rank takes: (dp_rank * fsdp_size + fsdp_rank) // ulysses_size.

        None stands for the running worker's rank, here and below.
        """
        return self._data_place(self._coords(rank)) // self.ulysses_size

    def get_slice(self, total_length: int, rank: int | None = None) -> slice:
        """Return the rows of a batch that a rank takes, by the balanced split over the data ranks."""
        return balanced_slice(total_length, self.data_world_size, self.data_rank(rank))

    def data_slice(self, total_length: int, data_rank: int) -> slice:
        """Return the rows of a batch that a data rank takes."""
        shares, data_rank = self.data_world_size, whole("data_rank", data_rank)
        if not 0 <= data_rank < shares:
            raise ValueError(f"data_rank={data_rank} is outside [0, {shares - 1}]: data_world_size={shares}")
        return balanced_slice(total_length, shares, data_rank)

    def data_slices(self, total_length: int) -> Slices:
        """Return the rows that each data rank takes, in data order."""
        return Slices(total_length, self.data_world_size)

    def same_data(self, rank: int | None = None) -> Ranks:
        """Return the ranks that see the same samples as `rank`, itself included, ascending."""
        return self._holders(self.data_rank(rank), {})

    def ulysses_group(self, rank: int | None = None) -> Ranks:
        """Return the ranks that split sequences with `rank` by ulysses: they differ from it in data dims only."""
        coords = self._coords(rank)
        place = self._data_place(coords)
        share = place // self.ulysses_size
        axes = self._axes({})
        cut = axes and split(axes[0], self.ulysses_size)
        if axes and cut:
            shares, peers = cut
            start = self._layout.place(coords) - Ranks(axes[0], 0)[place] + Ranks(shares, 0)[share]
            return Ranks(merged(sorted(peers, key=lambda factor: -factor[1])), start)
        if self._data_layout is None:
            return self._holders(share, {dim: coord for dim, coord in enumerate(coords) if dim not in self._data})
        # No arithmetic tells which peers belong together: those that come at the same count among their equals do.
        equals = self._by_place({}, 1)
        among = equals[place].index(self._layout.rank(coords))
        first = share * self.ulysses_size
        return Ranks.of(sorted([equals[peer][among] for peer in range(first, first + self.ulysses_size)]))

    @property
    def collect_ranks(self) -> Ranks:
        """One rank per data rank, in data order: the lowest on the last pipeline stage."""
        last = self._stage(self.pp_size - 1)
        axes = self._axes(last)
        cut = axes and split(axes[0], self.ulysses_size)
        if cut:
            return Ranks(cut[0], self._free(last)[1])
        if self._data_layout is not None:
            held = self._by_place(last, self.ulysses_size)
            return Ranks.of([held[share][0] for share in range(self.data_world_size)])
        return Ranks.of([self._holders(share, last)[0] for share in range(self.data_world_size)])

    @property
    def pp_first_ranks(self) -> Ranks:
        """The ranks of the first pipeline stage, ascending; all of them without pp."""
        return self._layout.ascending(*self._free(self._stage(0)))

    @property
    def pp_last_ranks(self) -> Ranks:
        """The ranks of the last pipeline stage, ascending; all of them without pp."""
        return self._layout.ascending(*self._free(self._stage(self.pp_size - 1)))

    def _stage(self, stage: int) -> dict[int, int]:
        return {self.dim_names.index("pp"): stage} if "pp" in self.dim_names else {}

    def _free(self, fixed: Mapping[int, int]) -> tuple[list[int], int]:
        """Return the dims that are not fixed, and the place where they are 0."""
        dims = range(len(self.shape))
        place = self._layout.place([fixed.get(dim, 0) for dim in dims])
        return [dim for dim in dims if dim not in fixed], place

    def _data_by_dim(self) -> DataLayout:
        """Return the data place of each coordinate."""
        return self._data_layout or DataLayout.of_dims(self.shape, self._data)

    def _data_place(self, coords: Sequence[int]) -> int:
        """Return where coordinates come in data order."""
        if self._data_layout is not None:
            return self._data_layout.rank(coords)
        shape = self._layout.shape
        place = 0
        for dim in self._data:
            place = place * shape[dim] + coords[dim]
        return place

    def _axes(self, fixed: Mapping[int, int]) -> tuple[Factors, Factors] | None:
        """Return the factors of ranks that differ in their data, in data order, and those of the other free ranks.

        None where no arithmetic tells them apart.
        """
        layout = self._layout
        if layout.table is not None:
            return None
        if self._data_layout is None:
            data = [factor for dim in self._data for factor in layout.factors[dim]]
            known = {*self._data, *fixed}
            rest = [factor for dim, held in enumerate(layout.factors) if dim not in known for factor in held]
            return merged(data), tuple(rest)
        pieces = self._data_layout.refine(layout)
        if pieces is None:
            return None
        ordered = sorted([(data, size, stride) for _, size, stride, data in pieces if data], reverse=True)
        free = [(size, stride) for dim, size, stride, data in pieces if not data and dim not in fixed]
        return merged([(size, stride) for _, size, stride in ordered]), tuple(free)

    def _holders(self, share: int, fixed: Mapping[int, int]) -> Ranks:
        """Return the ranks of one data rank, ascending, with some of the other coordinates fixed."""
        axes = self._axes(fixed)
        cut = axes and split(axes[0], self.ulysses_size)
        if axes and cut:
            shares, peers = cut
            place = self._free(fixed)[1]
            start = Ranks(shares, place)[share] if product(shares) > 1 else place
            return Ranks(merged(sorted([*peers, *axes[1]], key=lambda factor: -factor[1])), start)
        if self._data_layout is not None:
            return Ranks.of(self._by_place(fixed, self.ulysses_size)[share])
        layout = self._layout
        known = {**dict.fromkeys(self._data, 0), **fixed}
        free, _ = self._free(known)
        held: list[int] = []
        for number in range(share * self.ulysses_size, (share + 1) * self.ulysses_size):
            for dim in reversed(self._data):
                number, known[dim] = divmod(number, layout.shape[dim])
            held += layout.ranks(free, layout.place([known.get(dim, 0) for dim in range(len(self.shape))]))
        return Ranks.of(sorted(held))

    def _by_place(self, fixed: Mapping[int, int], neighbours: int) -> dict[int, list[int]]:
        """Return the ranks of each place in data order, ascending, where so many neighbours count as one place."""
        held: dict[int, list[int]] = {}
        for rank in sorted(self._layout.values()):
            coords = self._coords(rank)
            if all(coords[dim] == coord for dim, coord in fixed.items()):
                held.setdefault(self._data_place(coords) // neighbours, []).append(rank)
        return held
