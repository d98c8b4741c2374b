"""Any torch sampler or batch sampler, divided over the data ranks of a mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from itertools import islice
from typing import TYPE_CHECKING, Any

from twinkle_data.cursor import check_mapping, is_count
from twinkle_data.errors import NotResumableError, StateMismatchError
from twinkle_data.loading.ranks.data_shard import check_mesh_type, mesh_here, shard_here
from twinkle_data.loading.ranks.launched_ranks import number_of, store_of_ranks
from twinkle_data.loading.ranks.steps_on_ranks import StepsOnRanks, data_ranks, is_compared
from twinkle_data.option_checks import whole_number
from twinkle_data.order.generator_states import generators_in, restore, saved
from twinkle_data.order.moving_parts import MovingParts
from twinkle_data.order.permutation import derive
from twinkle_data.order.tails import TAILS, Tail, share
from twinkle_data.reading.sampler_draws import SamplerDraws
from twinkle_data.reading.sampler_kinds import have_states, is_batched, is_of_torch, is_torchs_batched, with_inner
from twinkle_data.sources.fingerprint import digest, fingerprint_of
from twinkle_data.sources.kinds import refuse_unordered
from twinkle_data.sources.parts import check_undivided
from twinkle_remote import current_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twinkle_data.order.steps import DataShard
    from twinkle_mesh import DeviceMesh
    from twinkle_remote import Place

_DRAWS = 0x64726177
_VERSION = 1
_WAIT_S = 5.0  # for the first elements of the other processes


class DeviceMeshSampler:
    """One data rank's share of what a torch sampler or batch sampler yields.

    For a batch sampler it yields lists: this rank's slice of each global batch. For a sampler of single indices it
    yields one of every `data_world_size` consecutive indices. Every rank takes the same number of steps. A sampler
    whose `generator` is None (torch's random samplers) gets a generator that is seeded by (seed, epoch), so that all
    ranks agree; without `set_epoch`, each further pass has the order of the next epoch. What a sampler draws from the
    global generators, if it draws for its first element, is a function of (seed, epoch) and the number of passes in
    that epoch. A sampler that draws from another source must yield the same on every rank; processes with a process
    group compare this. The state holds the states of the sampler's generators, and the attributes that the sampler
    changes itself, such as a counter of passes or a list that it shuffles in place.

    Args:
        sampler: A sampler of ints or of lists of ints. Do not use it elsewhere: its `generator` may be set.
        device_mesh: Mesh with the data ranks; on the driver the global batches are not divided.
        seed: Seed of the generator that a random sampler gets.
        tail: The rule for a batch that does not divide over the data ranks. `drop` leaves out the last batch, `short`
            (only for batches) splits each batch as evenly as possible, `pad` repeats rows. None pads the last batch, so
            that no row is lost, and raises for an earlier batch.
        batched: Whether the sampler yields lists. With None, torch's samplers and lists are known, and of another
            sampler with a `batch_size` the first element decides. All other samplers yield single indices.

    Raises:
        ValueError: Its batches do not divide over the data ranks, or it is already divided, like a DistributedSampler.
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
        self._maker: Place | None = current_place()
        check_mesh_type(device_mesh)
        mesh_here(device_mesh, self._maker)
        refuse_unordered(sampler, "the sampler")
        check_undivided(sampler, device_mesh.data_world_size, f"the sampler {type(sampler).__name__}")
        self.epoch = 0
        self._seed = whole_number("seed", seed)
        self._tail = tail
        self._seeded = [one for one in with_inner(sampler) if getattr(one, "generator", False) is None]
        # Generators of the user's, and their states when the latest pass began.
        self._generators = generators_in(sampler)
        self._states: list[Any] | None = None
        # Attributes that it changes itself, such as a counter, and their values when the latest pass began.
        self._parts = MovingParts(sampler)
        self._moved: dict[str, Any] | NotResumableError | None = None
        self._passes = 0  # in this epoch that have ended: one that draws anew has another order in each
        self._is_told = False  # the program sets epochs
        self._number: int | None = None  # among the samplers of its type, in the order of their first passes
        self._batched = is_batched(sampler, self._generators, self._parts) if batched is None else batched
        # Numbers of elements of the wrapped sampler: those before this pass, and those that it took.
        self._begin = 0
        self._taken = 0
        self._ended = False  # the pass took all elements
        self._fingerprint = fingerprint_of(sampler)
        size = getattr(sampler, "batch_size", None) if self._batched else None
        if size is not None:
            self._check(size)
        if tail == "short" and not self._batched:
            raise ValueError(
                'tail="short" over single indices would give ranks unequal numbers of steps; wrap a batch sampler, '
                'or use "drop" or "pad"'
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maker": None}

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; calls `set_epoch` of the wrapped sampler where it has one.

        In the epoch where the sampler is, a pass that has not ended goes on.
        """
        number = whole_number("epoch", epoch)
        if number < 0:
            raise ValueError(f"epoch={number} must be at least 0")
        self._is_told = True
        self._go_to(number)

    def _go_to(self, epoch: int) -> None:
        if epoch != self.epoch or self._ended:
            self._begin = self._taken = 0
            self._ended = False
            self._states = self._moved = None
            self._passes = 0
        self.epoch = epoch
        for one in with_inner(self.sampler):
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
            self._passes += 1
        self._taken = 0
        self._states = self._moved = None
        return self._pass(self._begin, self.epoch)

    def state_dict(self, delivered: int | None = None) -> dict[str, Any]:
        """The position as JSON values; it can be loaded on another number of ranks.

        Args:
            delivered: Steps of the current pass that the loop got. None counts the steps that were drawn; with a loader
                that prefetches these are more.

        Raises:
            NotResumableError: A generator of the sampler, or an attribute that it changes itself, cannot be saved.
        """
        taken = self._taken if delivered is None else delivered * self._stride()
        epoch, position = self.epoch, self._begin + taken
        length: int = len(self.sampler)  # type: ignore[arg-type]  # torch's samplers have a length, or raise TypeError
        over = position >= length or self._steps_left(position) <= 0 or (self._ended and delivered is None)
        if over:
            epoch, position = epoch + 1 + (0 if self._is_told else self._passes), 0
        state: dict[str, Any] = {
            "version": _VERSION,
            "seed": self._seed,
            "length": length,
            "epoch": epoch,
            "position": position,
            "fingerprint": self._fingerprint,
        }
        if self._passes and not over:
            state["passes"] = self._passes
        within = self._moved is not None and not self._ended
        moved = self._parts.moved() if self._moved is None or self._ended else self._moved
        if isinstance(moved, NotResumableError):
            raise moved
        if moved:
            state["attributes"] = moved
        if self._generators:
            state["generators"] = saved(self._generators) if self._states is None or self._ended else self._states
        if within and over and (self._generators or not is_of_torch(self.sampler)):
            # The pass before has drawn from those states, and may change the sampler at its end.
            state["redraw"], state["redraw_epoch"] = self._passes + 1, self.epoch
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; the elements before it are drawn again and skipped.

        Raises:
            StateMismatchError: The state was saved with another seed, over other elements, or with other generators, or
                it is no state of a sampler.
        """
        check_mapping(state)
        missing = {"version", "seed", "length", "epoch", "position"} - set(state)
        if missing:
            raise StateMismatchError(f"this is no sampler state: {sorted(missing)} missing, got keys {sorted(state)}")
        if state["version"] != _VERSION:
            raise StateMismatchError(f"the state has version {state['version']}, this release reads {_VERSION}")
        length: int = len(self.sampler)  # type: ignore[arg-type]  # as above
        if (state["seed"], state["length"]) != (self._seed, length):
            raise StateMismatchError(
                f"the state was saved with seed={state['seed']} over {state['length']} elements, this sampler has "
                f"seed={self._seed} and {length}"
            )
        epoch, position = state["epoch"], state["position"]
        if not is_count(epoch) or not is_count(position) or position > length:
            raise StateMismatchError(
                f"epoch={epoch!r} and position={position!r} must be whole numbers, the position in [0, {length}]"
            )
        if state.get("fingerprint", self._fingerprint) != self._fingerprint:
            raise StateMismatchError(
                f"the state was saved over a {type(self.sampler).__name__} of other indices, weights or data than this "
                f"one's (fingerprint saved {state['fingerprint']!r}, here {self._fingerprint!r})"
            )
        restore(self._generators, state.get("generators", []))
        moved = dict(state.get("attributes", {}))
        self._parts.restore(moved)
        if state.get("redraw"):
            self._go_to(state.get("redraw_epoch", state["epoch"] - 1))
            self._parts.restore(moved)
            for _ in self._drawn(self.epoch, int(state["redraw"]) - 1):
                pass
            moved = self._parts.moved()
        self._go_to(state["epoch"])
        self._parts.restore(moved)
        self._begin, self._taken = state["position"], 0
        self._states, self._moved, self._ended = None, None, False
        self._passes = state.get("passes", 0)

    def _stride(self) -> int:
        """Number of elements of the wrapped sampler that one step takes."""
        shard = shard_here(self.device_mesh, current_place(self._maker))
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
        if self._tail != "drop" or not is_torchs_batched(self.sampler):
            return 0
        batches: Any = self.sampler
        rest: int = len(batches.sampler) % batches.batch_size
        return int(not batches.drop_last and rest % self.device_mesh.data_world_size != 0)

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
        self._states = saved(self._generators) if have_states(self._generators) else None
        self._moved = self._moved_now()
        within = self._within_group(begin)
        drawn = self._drawn(epoch, self._passes)
        elements = islice(self._compared(drawn, epoch, begin), begin - within, None)
        yield from self._batches(elements) if self._batched else self._indices(elements, within)
        self._ended = True

    def _moved_now(self) -> dict[str, Any] | NotResumableError:
        try:
            return self._parts.moved()
        except NotResumableError as error:  # it matters where a state is asked for
            return error

    def _drawn(self, epoch: int, number: int) -> Iterator[Any]:
        """The elements of a pass.

        Args:
            epoch: The epoch.
            number: Passes in that epoch before this one.
        """
        # A random sampler takes its generator at its first element, so another pass may not begin in between.
        for place, one in enumerate(self._seeded):
            one.generator = _generator(derive(self._seed, epoch + number, place))
        return SamplerDraws(derive(self._seed, epoch, number, _DRAWS)).elements(self.sampler)

    def _compared(self, elements: Iterator[Any], epoch: int, begin: int) -> Iterator[Any]:
        """The same elements; processes that divide them compare what they get."""
        place = current_place(self._maker)
        store = store_of_ranks(self.device_mesh, place)
        if store is None:
            yield from elements
            return
        kind = type(self.sampler).__qualname__
        if self._number is None:
            self._number = number_of(store, kind)
        ranks = StepsOnRanks(
            store, f"{kind}/{self._number}/{epoch}/{begin}/{self._passes}", self.device_mesh, place.rank
        )
        length = len(self.sampler) if isinstance(self.sampler, Sized) else None
        facts = [f"length {length}", f"tail {self._tail}", f"data ranks {data_ranks(self.device_mesh)}"]
        for step, element in enumerate(elements):
            if is_compared(step):
                ranks.compare(str(step), [*facts, f"indices {digest(element)}"], wait_s=0.0 if step else _WAIT_S)
            yield element

    def _batches(self, elements: Iterator[Any]) -> Iterator[list[int]]:
        shard = shard_here(self.device_mesh, current_place(self._maker))
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
        shard = shard_here(self.device_mesh, current_place(self._maker))
        while group := list(islice(elements, shard.data_world_size)):
            if isinstance(group[0], (list, tuple)):
                raise TypeError(f"{type(self.sampler).__name__} yields lists: say batched=True")
            if len(group) < shard.data_world_size and self._tail == "drop":
                return
            for rank in shard.ranks[within:]:
                self._taken += self._stride()
                yield group[rank % len(group)]
            within = 0


def _generator(key: int) -> Any:
    import torch

    generator = torch.Generator()
    generator.manual_seed(key >> 1)
    return generator
