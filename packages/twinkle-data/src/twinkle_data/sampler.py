"""Any torch sampler or batch sampler, divided over the data ranks of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_data.permutation import derive
from twinkle_data.place import part_here
from twinkle_data.tails import TAILS, Tail, share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from twinkle_mesh import DeviceMesh


class DeviceMeshSampler:
    """One data rank's share of what a torch sampler or batch sampler yields.

    From a batch sampler come lists: each global batch cut by data rank. From a sampler of single indices come
    indices: of every `data_world_size` in a row, this rank's one. Every rank takes the same number of steps.
    Samplers with a `generator` that is None (torch's random ones) are given one that is a function of (seed,
    epoch), so that all ranks agree.

    Args:
        sampler: A sampler of ints or of lists of ints, shared with nobody else: its `generator` may be set.
        device_mesh: Whose data ranks; on the driver the global batches come through whole.
        seed: Seed of the generator that is given to a random sampler.
        tail: For rows that do not divide: `drop` leaves them out, `short` (batches only) splits them as
            evenly as possible, `pad` repeats a row where one is missing.
    """

    def __init__(
        self,
        sampler: Iterable[int] | Iterable[list[int]],
        device_mesh: DeviceMesh,
        *,
        seed: int = 0,
        tail: Tail = "drop",
    ) -> None:
        if tail not in TAILS:
            raise ValueError(f"tail={tail!r} is not one of {', '.join(map(repr, TAILS))}")
        self.sampler = sampler
        self.device_mesh = device_mesh
        self.epoch = 0
        self._seed = seed
        self._tail: Tail = tail
        self._skip = 0
        self._yielded = 0
        self._seeded = [part for part in _with_inner(sampler) if getattr(part, "generator", False) is None]
        self._batched = _is_batched(sampler)
        if tail == "short" and not self._batched:
            raise ValueError(
                'tail="short" over single indices would give ranks unequal numbers of steps; wrap a batch '
                'sampler, or use "drop" or "pad"'
            )

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, and tell the wrapped sampler where it listens."""
        if epoch != self.epoch:
            self._skip = self._yielded = 0
        self.epoch = epoch
        for part in _with_inner(self.sampler):
            tell = getattr(part, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def __len__(self) -> int:
        """Steps that are left in this epoch, the same on every rank.

        Raises:
            TypeError: The wrapped sampler has no length.
        """
        steps = self._whole_length() - self._skip
        if not self._batched and part_here(self.device_mesh).data_rank is None:
            return steps * self.device_mesh.data_world_size
        return steps

    def __iter__(self) -> Iterator[Any]:
        """This rank's share, from the loaded position on; nothing is moved before the first step is taken."""
        self._seed_generators()
        self._yielded = 0
        steps = self._batches() if self._batched else self._indices()
        for number, step in enumerate(steps):
            if number >= self._skip:
                self._yielded += 1
                yield step

    def state_dict(self, delivered: int | None = None) -> dict[str, int]:
        """The position as JSON values.

        Args:
            delivered: Steps of the current pass that were delivered; None counts what was asked for, which
                runs ahead when a loader prefetches.
        """
        done = self._skip + (self._yielded if delivered is None else delivered)
        epoch, step = (self.epoch, done) if done < self._whole_length() else (self.epoch + 1, 0)
        return {"version": 1, "seed": self._seed, "epoch": epoch, "step": step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a saved position; steps before it are drawn again and left out.

        Raises:
            ValueError: The state was saved with another seed.
        """
        if state["seed"] != self._seed:
            raise ValueError(f"the state was saved with seed={state['seed']}, this sampler has seed={self._seed}")
        self.set_epoch(state["epoch"])
        self._skip, self._yielded = state["step"], 0

    def _whole_length(self) -> int:
        whole = len(self.sampler)  # type: ignore[arg-type]  # torch's samplers have a length, or raise TypeError here
        if self._batched:
            return whole - self._dropped()
        ranks = self.device_mesh.data_world_size
        return whole // ranks if self._tail == "drop" else -(-whole // ranks)

    def _dropped(self) -> int:
        """Last batches that `drop` leaves out, as far as torch's own batch samplers tell."""
        size, inner = getattr(self.sampler, "batch_size", None), getattr(self.sampler, "sampler", None)
        if self._tail != "drop" or size is None or inner is None or getattr(self.sampler, "drop_last", False):
            return 0
        rest = len(inner) % size
        return int(rest % self.device_mesh.data_world_size != 0)

    def _seed_generators(self) -> None:
        if self._seeded:
            import torch

            for place, part in enumerate(self._seeded):
                generator = torch.Generator()
                generator.manual_seed(derive(self._seed, self.epoch, place) >> 1)
                part.generator = generator

    def _batches(self) -> Iterator[list[int]]:
        part = part_here(self.device_mesh)
        for batch in self.sampler:
            rows: list[int] = list(batch)  # type: ignore[arg-type]  # a batch sampler yields lists
            if self._tail == "drop" and len(rows) % part.data_world_size:
                continue
            own = [share(len(rows), part.data_world_size, rank, self._tail) for rank in part.ranks]
            yield [rows[place] for cut in own for place in (*range(cut.start, cut.stop), *cut.fillers)]

    def _indices(self) -> Iterator[int]:
        part = part_here(self.device_mesh)
        group: list[int] = []
        for index in self.sampler:
            group.append(index)  # type: ignore[arg-type]  # a sampler yields indices
            if len(group) == part.data_world_size:
                yield from (group[rank] for rank in part.ranks)
                group.clear()
        if group and self._tail == "pad":
            yield from (group[rank % len(group)] for rank in part.ranks)


def _with_inner(sampler: Any) -> list[Any]:
    inner = getattr(sampler, "sampler", None)
    return [sampler] if inner is None else [sampler, *_with_inner(inner)]


def _is_batched(sampler: object) -> bool:
    if hasattr(sampler, "batch_size"):
        return True
    if isinstance(sampler, (list, tuple)):
        return bool(sampler) and isinstance(sampler[0], (list, tuple))
    return False
