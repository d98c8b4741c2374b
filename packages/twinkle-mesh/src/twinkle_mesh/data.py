"""Data parallelism: which ranks see which samples."""

from __future__ import annotations

from .balance import Slices, balanced_slice
from .layout import merged, product, split
from .lookup import Lookup
from .ranks import Ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .layout import Factors


class DataParallel(Lookup):
    """Data ranks: ranks that differ in a data dim see different samples, all others see the same."""

    __slots__ = ()

    @property
    def data_world_size(self) -> int:
        """How many different shares of a batch there are: dp * fsdp / ulysses."""
        shares = 1
        for dim in self._data:
            shares *= self._layout.shape[dim]
        return shares // self.ulysses_size

    def data_rank(self, rank: int | None = None) -> int:
        """Return which share of a batch a rank takes: (dp_rank * fsdp_size + fsdp_rank) // ulysses_size.

        None stands for the running worker's rank, here and below.
        """
        coords = self._coords(rank)
        shape = self._layout.shape
        place = 0
        for dim in self._data:
            place = place * shape[dim] + coords[dim]
        return place // self.ulysses_size

    def get_slice(self, total_length: int, rank: int | None = None) -> slice:
        """Return the rows of a batch that a rank takes, by the balanced split over the data ranks."""
        return balanced_slice(total_length, self.data_world_size, self.data_rank(rank))

    def data_slice(self, total_length: int, data_rank: int) -> slice:
        """Return the rows of a batch that a data rank takes."""
        shares = self.data_world_size
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
        fixed = {dim: coord for dim, coord in enumerate(coords) if dim not in self._data}
        return self._holders(self.data_rank(rank), fixed)

    @property
    def collect_ranks(self) -> Ranks:
        """One rank per data rank, in data order: the lowest on the last pipeline stage."""
        last = self._stage(self.pp_size - 1)
        layout = self._layout
        cut = self._shares()
        if cut is not None:
            return Ranks(cut[0], layout.place([last.get(dim, 0) for dim in range(len(layout.shape))]))
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

    def _shares(self) -> tuple[Factors, Factors] | None:
        """Cut the data dims into shares and the ulysses peers inside one, where that is arithmetic."""
        layout = self._layout
        if layout.table is not None:
            return None
        return split(merged([factor for dim in self._data for factor in layout.factors[dim]]), self.ulysses_size)

    def _holders(self, share: int, fixed: Mapping[int, int]) -> Ranks:
        """Return the ranks of one data rank, ascending, with some of the other coordinates fixed."""
        layout = self._layout
        known = {**dict.fromkeys(self._data, 0), **fixed}
        free, place = self._free(known)
        cut = self._shares()
        if cut is not None:
            shares, peers = cut
            start = Ranks(shares, place)[share] if product(shares) > 1 else place
            inside = [*peers, *(factor for dim in free for factor in layout.factors[dim])]
            return Ranks(merged(sorted(inside, key=lambda factor: -factor[1])), start)
        held: list[int] = []
        for number in range(share * self.ulysses_size, (share + 1) * self.ulysses_size):
            for dim in reversed(self._data):
                number, known[dim] = divmod(number, layout.shape[dim])
            held += layout.ranks(free, layout.place([known.get(dim, 0) for dim in range(len(self.shape))]))
        return Ranks.of(sorted(held))
