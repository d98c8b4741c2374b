"""Any torch sampler or batch sampler, divided over the data ranks of a mesh."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from twinkle_data.errors import StateMismatchError
from twinkle_data.loading.data_shard import mesh_here, shard_here
from twinkle_data.order.permutation import derive
from twinkle_data.order.tails import TAILS, Tail, share
from twinkle_data.whole_number import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from twinkle_data.order.steps import DataShard
    from twinkle_mesh import DeviceMesh


class DeviceMeshSampler:
    """One data rank's share of what a torch sampler or batch sampler yields.

    A batch sampler gives lists: this rank's slice of each global batch. A sampler of single indices gives indices: one
    of every `data_world_size` in a row. Every rank takes the same number of steps. A sampler whose `generator` is None
    (torch's random ones) gets one that is seeded by (seed, epoch), so that all ranks agree. A sampler that draws from
    another source must yield the same on every rank.

    Args:
        sampler: A sampler of ints or of lists of ints. Do not use it elsewhere: its `generator` may be set.
        device_mesh: Mesh with the data ranks; on the driver the global batches are not divided.
        seed: Seed of the generator that a random sampler gets.
        tail: What to do with a batch that does not divide over the data ranks: `drop` leaves out the last one, `short`
            (batches only) splits each batch as evenly as possible, `pad` repeats rows. None pads the last batch, so
            that no row is lost, and raises for an earlier one.
        batched: Whether the sampler yields lists; None looks at its `batch_size`, or at its first element.
    """

    def __init__(
        self,
        sampler: Iterable[int] | Iterable[list[int]],
        device_mesh: DeviceMesh,
        *,
        seed: int = 0,
        tail: Tail | None = None,
        batched: bool | None = None,
    ) -> None:
        if tail is not None and tail not in TAILS:
            raise ValueError(f"tail={tail!r} is not one of {', '.join(map(repr, TAILS))}")
        self.sampler = sampler
        self.device_mesh = device_mesh
        mesh_here(device_mesh)
        self.epoch = 0
        self._seed = whole_number("seed", seed)
        self._tail = tail
        self._batched = _is_batched(sampler) if batched is None else batched
        # Numbers of elements of the wrapped sampler: those before this pass, and those that it took.
        self._begin = 0
        self._taken = 0
        self._ended = False  # the pass took all elements
        self._seeded = [one for one in _with_inner(sampler) if getattr(one, "generator", False) is None]
        size = getattr(sampler, "batch_size", None) if self._batched else None
        if size is not None:
            self._check(size)
        if tail == "short" and not self._batched:
            raise ValueError(
                'tail="short" over single indices would give ranks unequal numbers of steps; wrap a batch sampler, '
                'or use "drop" or "pad"'
            )

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; calls `set_epoch` of the wrapped sampler where it has one."""
        if epoch != self.epoch:
            self._begin = self._taken = 0
            self._ended = False
        self.epoch = epoch
        for one in _with_inner(self.sampler):
            set_epoch = getattr(one, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    def __len__(self) -> int:
        """Steps of the next pass, the same on every rank: those that are left in this epoch, or all after its end.

        Raises:
            TypeError: The wrapped sampler has no length.
        """
        return self._steps_left(0 if self._ended else self._begin)

    def __iter__(self) -> Iterator[Any]:
        """This rank's share, in the first pass from the loaded position on; only taking a step moves the position."""
        if self._ended:
            self._begin, self._ended = 0, False
        self._taken = 0
        return self._pass(self._begin, self.epoch)

    def state_dict(self, delivered: int | None = None) -> dict[str, int]:
        """The position as JSON values; it can be loaded on another number of ranks.

        Args:
            delivered: Steps of the current pass that the loop got; None counts the steps that were taken, which
                are more when a loader prefetches.
        """
        taken = self._taken if delivered is None else delivered * self._stride()
        epoch, position = self.epoch, self._begin + taken
        length: int = len(self.sampler)  # type: ignore[arg-type]  # torch's samplers have a length, or raise TypeError
        if position >= length or self._steps_left(position) <= 0:
            epoch, position = epoch + 1, 0
        return {"version": 1, "seed": self._seed, "length": length, "epoch": epoch, "position": position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a saved position; the elements before it are drawn again and skipped.

        Raises:
            StateMismatchError: The state was saved with another seed, or over another number of elements.
        """
        length: int = len(self.sampler)  # type: ignore[arg-type]  # as above
        if (state["seed"], state["length"]) != (self._seed, length):
            raise StateMismatchError(
                f"the state was saved with seed={state['seed']} over {state['length']} elements, this sampler has "
                f"seed={self._seed} and {length}"
            )
        self.set_epoch(state["epoch"])
        self._begin, self._taken = state["position"], 0

    def _stride(self) -> int:
        """Number of elements of the wrapped sampler that one step takes."""
        shard = shard_here(self.device_mesh)
        return 1 if self._batched or shard.data_rank is None else shard.data_world_size

    def _steps_left(self, begin: int) -> int:
        within = self._within_group(begin)
        left: int = len(self.sampler) - begin + within  # type: ignore[arg-type]  # as above
        if self._batched:
            return left - self._uneven_last()
        world = self.device_mesh.data_world_size
        groups = left // world if self._tail == "drop" else -(-left // world)
        return groups * (world if self._stride() == 1 else 1) - within

    def _within_group(self, begin: int) -> int:
        """Number of single indices of the group at a position that the driver, which takes them all, has taken."""
        return 0 if self._batched or self._stride() > 1 else begin % self.device_mesh.data_world_size

    def _uneven_last(self) -> int:
        """1 when `drop` leaves out the last batch; 0 where the sampler is not one of torch's batch samplers."""
        size, inner = getattr(self.sampler, "batch_size", None), getattr(self.sampler, "sampler", None)
        if self._tail != "drop" or size is None or inner is None or getattr(self.sampler, "drop_last", False):
            return 0
        return int(len(inner) % size % self.device_mesh.data_world_size != 0)

    def _check(self, rows: int) -> None:
        """Refuse a batch that is not the last of an epoch and does not divide."""
        world = self.device_mesh.data_world_size
        if self._tail in ("short", "pad") or rows % world == 0:
            return
        near = " or ".join(str(size) for size in (rows // world * world, rows // world * world + world) if size)
        raise ValueError(
            f"{type(self.sampler).__name__} yields batches of {rows}, not a multiple of data_world_size={world}: "
            f'batches of {near} would, or tail="short" (unequal shares) or tail="pad" (rows repeated)'
        )

    def _pass(self, begin: int, epoch: int) -> Iterator[Any]:
        # A random sampler takes its generator at its first element, so another pass may not begin in between.
        for number, one in enumerate(self._seeded):
            one.generator = _generator(derive(self._seed, epoch, number))
        within = self._within_group(begin)
        elements: Iterator[Any] = islice(iter(self.sampler), begin - within, None)
        yield from self._batches(elements) if self._batched else self._indices(elements, within)
        self._ended = True

    def _batches(self, elements: Iterator[Any]) -> Iterator[list[int]]:
        shard = shard_here(self.device_mesh)
        uneven_last = self._uneven_last()
        waiting: list[int] | None = None  # an uneven batch; the next one shows whether it is the last
        for batch in elements:
            rows = list(batch)
            if waiting is not None:
                self._check(len(waiting))
            if len(rows) % shard.data_world_size and self._tail in (None, "drop"):
                waiting = rows
                continue
            self._taken += 1
            yield self._cut(rows, shard)
        if waiting is None:
            return
        if self._tail == "drop" and not uneven_last:
            # len() did not count it out, and every rank relies on len().
            self._check(len(waiting))
        self._taken += 1
        if self._tail != "drop":
            yield self._cut(waiting, shard)

    def _cut(self, rows: list[int], shard: DataShard) -> list[int]:
        tail: Tail = self._tail or "pad"
        own = [share(len(rows), shard.data_world_size, rank, tail) for rank in shard.ranks]
        return [rows[row] for cut in own for row in (*range(cut.start, cut.stop), *cut.fillers)]

    def _indices(self, elements: Iterator[Any], within: int) -> Iterator[int]:
        shard = shard_here(self.device_mesh)
        while group := list(islice(elements, shard.data_world_size)):
            if isinstance(group[0], (list, tuple)):
                raise TypeError(f"{type(self.sampler).__name__} yields lists: say batched=True")
            if len(group) < shard.data_world_size and self._tail == "drop":
                return
            for rank in shard.ranks[within:]:
                self._taken += self._stride()
                yield group[rank % len(group)]
            within = 0


def _with_inner(sampler: Any) -> list[Any]:
    inner = getattr(sampler, "sampler", None)
    return [sampler] if inner is None else [sampler, *_with_inner(inner)]


def _is_batched(sampler: object) -> bool:
    if isinstance(sampler, (list, tuple)):
        return bool(sampler) and isinstance(sampler[0], (list, tuple))
    return hasattr(sampler, "batch_size")


def _generator(key: int) -> Any:
    import torch

    generator = torch.Generator()
    generator.manual_seed(key >> 1)
    return generator
