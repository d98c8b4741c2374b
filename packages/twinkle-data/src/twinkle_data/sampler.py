"""Samplers: any of torch's, divided over the data ranks of a mesh, or as the order of a loader.

All ranks draw the same: a sampler without a generator gets one that is seeded by (seed, epoch), and what it draws from
the global generators is a function of these. A generator of the program's own works, and its state cannot be saved.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from twinkle_data.errors import NotResumableError
from twinkle_data.order import derive
from twinkle_data.ranks import share_here
from twinkle_data.reading import program_generators_kept, seed_generators
from twinkle_data.sources import by_position, check_undivided
from twinkle_data.state import check_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from twinkle_mesh import DeviceMesh


def _with_inner(sampler: Any) -> list[Any]:
    """A sampler, and the one that it batches."""
    return [part for part in (sampler, getattr(sampler, "sampler", None)) if part is not None]


def refuse_own_generator(sampler: Any) -> None:
    """Refuse to save the position of a sampler that draws from a generator of the program's."""
    if any(getattr(part, "generator", None) is not None for part in _with_inner(sampler)):
        raise NotResumableError(
            f"{type(sampler).__name__} has a generator of its own, whose state nobody saves: leave its generator= out, "
            "and it gets one that is seeded by seed= and the epoch"
        )


def drawn(sampler: Any, seed: int, epoch: int) -> Iterator[Any]:
    """The elements of a sampler in an epoch, the same on every rank; it draws for its first element, as torch's do."""
    from torch import Generator

    parts = _with_inner(sampler)
    for part in parts:
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)
    empty = [part for part in parts if getattr(part, "generator", False) is None]
    key = derive(seed, epoch, 3)
    with program_generators_kept():
        seed_generators(key)
        try:
            for part in empty:
                part.generator = Generator().manual_seed(key >> 1)
            elements = iter(sampler)
            first = list(islice(elements, 1))
        finally:
            for part in empty:
                part.generator = None
    return chain(first, elements)


class SamplerOrder:
    """The order that a sampler of indices gives, drawn once for each epoch."""

    def __init__(self, sampler: Any, seed: int) -> None:
        by_position(sampler, "the sampler")
        check_undivided(sampler)
        self.name = f"sampler-v1 {type(sampler).__name__}"
        self.length = len(sampler)
        self._sampler, self._seed = sampler, seed
        self._now: tuple[int, NDArray[np.int64]] | None = None

    def block(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """The indices at positions [start, stop) of an epoch."""
        if self._now is None or self._now[0] != epoch:
            indices = np.array(list(drawn(self._sampler, self._seed, epoch)), dtype=np.int64)
            if indices.shape != (self.length,):
                raise ValueError(
                    f"sampler= yields single indices, as many as its len() says: {self.length}; got an array "
                    f"{indices.shape}. Pass the sampler inside of a batch sampler; batch_size= makes the batches"
                )
            self._now = epoch, indices
        return self._now[1][start:stop]


class DeviceMeshSampler:
    """One data rank's share of what a torch sampler or batch sampler yields.

    Of a batch sampler it yields this rank's slice of each batch, `batch[device_mesh.get_slice(len(batch))]`; of a
    sampler of single indices it yields one of every `data_world_size`. Every rank takes equally many steps: what is
    too short for all ranks is filled up with rows of its own. Without `set_epoch` each further pass is that of the
    next epoch. On the driver nothing is divided.

    Args:
        sampler: Yields indices or lists of indices. Do not use it elsewhere: its `generator` is set while it draws.
        device_mesh: Mesh with the data ranks.
        seed: Seed of a sampler without a generator of its own.
        batched: Whether the sampler yields lists; None looks whether it is a batch sampler of torch's kind, or a list
            of lists.

    Raises:
        ValueError: It is divided over ranks already, like a DistributedSampler.
    """

    def __init__(
        self,
        sampler: Iterable[int] | Iterable[list[int]],
        device_mesh: DeviceMesh,
        *,
        seed: int = 0,
        batched: bool | None = None,
    ) -> None:
        self.sampler: Any = by_position(sampler, "the sampler")
        self.device_mesh = device_mesh
        if device_mesh.data_world_size > 1:
            check_undivided(sampler)
        share_here(device_mesh)
        self.epoch, self._seed = 0, seed
        if batched is None:
            first = sampler[0] if isinstance(sampler, (list, tuple)) and sampler else None
            batched = isinstance(first, (list, tuple)) or (
                hasattr(sampler, "sampler") and hasattr(sampler, "batch_size")
            )
        self._batched = batched
        self._begin = self._taken = 0  # elements of the sampler before this pass, and those that it took

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, unless the sampler is in it."""
        if epoch != self.epoch:
            self.epoch, self._begin, self._taken = epoch, 0, 0

    def __len__(self) -> int:
        """Steps of the next pass, the same on every rank: those that are left in this epoch."""
        left = len(self.sampler) - self._begin
        return -(-left // self._stride())

    def __iter__(self) -> Iterator[Any]:
        """This rank's share, from the loaded position on in the first pass."""
        share, stride, epoch, self._taken = share_here(self.device_mesh), self._stride(), self.epoch, 0
        elements = islice(drawn(self.sampler, self._seed, epoch), self._begin, None)
        while group := list(islice(elements, stride)):
            if isinstance(group[0], (list, tuple)) != self._batched:
                found = "single indices" if self._batched else "lists"
                raise TypeError(f"{type(self.sampler).__name__} yields {found}: pass batched={not self._batched}")
            self._taken += len(group)
            if share.rank is None:
                yield group[0]
                continue
            rows = list(group[0]) if self._batched else group
            rows += [rows[at % len(rows)] for at in range(share.world - len(rows))] if rows else []
            yield rows[self.device_mesh.get_slice(len(rows))] if self._batched else rows[share.rank]
        self.epoch, self._begin, self._taken = epoch + 1, 0, 0

    def _stride(self) -> int:
        """Elements of the sampler that one step takes."""
        share = share_here(self.device_mesh)
        return 1 if self._batched or share.rank is None else share.world

    def state_dict(self, delivered: int | None = None) -> dict[str, Any]:
        """The position as JSON values; it can be loaded on another number of ranks.

        Args:
            delivered: Steps of this pass that the loop got; None counts those that were drawn, which are more where a
                loader reads ahead.

        Raises:
            NotResumableError: The sampler has a generator of the program's own.
        """
        refuse_own_generator(self.sampler)
        taken = self._taken if delivered is None else delivered * self._stride()
        at = min(self._begin + taken, len(self.sampler))
        epoch, position = (self.epoch, at) if at < len(self.sampler) else (self.epoch + 1, 0)
        return {"seed": self._seed, "length": len(self.sampler), "epoch": epoch, "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; the elements before it are drawn again and skipped.

        Raises:
            StateMismatchError: It was saved with another seed or over another number of elements.
        """
        check_state(state, {"seed": self._seed, "length": len(self.sampler)})
        self.epoch, self._begin, self._taken = state["epoch"], state["position"], 0
