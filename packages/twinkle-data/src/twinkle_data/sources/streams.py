"""Streams: datasets without a length; only reading shows the end. Every rank reads all of a stream."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any, Final, Protocol

from twinkle_data.errors import NotResumableError
from twinkle_data.reading.randomness import seed_this
from twinkle_data.sources.carried_state import CarriedState
from twinkle_data.sources.fingerprint import digest, fingerprint_of
from twinkle_data.sources.kinds import refuse_frames, refuse_unordered
from twinkle_data.sources.parts import is_of_library, set_epoch_in
from twinkle_data.sources.shard_stream import ShardStream
from twinkle_data.sources.shards import Shards
from twinkle_data.sources.stream_positions import StreamPosition, check_starts_anew, position_of

_ENDED: Final = object()


class SampleStream(Protocol):
    """Samples in one order, without a length and without indices.

    Attributes:
        algorithm: Name and version of the order.
        resumable: It can begin at a saved state.
        dataset: The dataset as the user gave it.
    """

    dataset: Any
    algorithm: str
    resumable: bool

    @property
    def fingerprint(self) -> str:
        """Digest of the dataset, made when it is asked for."""

    def begin(self, epoch: int, state: Any) -> Iterator[Any]:
        """Iterate over an epoch from its start, or from a state on."""

    def state(self) -> Any:
        """The state after the last sample that was taken, as JSON values."""

    def was_moved(self) -> bool:
        """Whether another loader has begun a pass of the same object since this one began its own."""

    def finish(self, epoch: int, end: Any) -> None:
        """Note the state at the end of a pass, whose last samples are delivered."""

    def carried(self) -> dict[str, Any]:
        """Return the changes of the passes so far on the object, as JSON values where its state has these."""

    def carry(self, state: dict[str, Any]) -> None:
        """Change the object as passes elsewhere have changed their copy of it."""


class IterableStream:
    """A torch or Hugging Face iterable dataset, or any iterable.

    Args:
        dataset: The iterable; resumable where it has `state_dict` and `load_state_dict`.
    """

    algorithm = "stream-v1"

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.resumable = callable(getattr(dataset, "state_dict", None)) and callable(
            getattr(dataset, "load_state_dict", None)
        )
        own = not (self.resumable or is_of_library(type(dataset)) or isinstance(dataset, FactoryIterable))
        self._carried = CarriedState(dataset) if own else None
        # Epoch and state at the end of the latest pass that was read to its end; the dataset may stand there.
        self._end: tuple[int, Any] | None = None
        self._stands_there = False
        self._resumed = ""  # digest of the state behind the first sample of a pass that began at a saved state

    @property
    def fingerprint(self) -> str:
        """The fingerprint of what can be seen of the stream without reading it."""
        return fingerprint_of(self.dataset)

    def begin(self, epoch: int, state: Any) -> Iterator[Any]:
        """Iterate over an epoch from its start, or from a state on."""
        position = position_of(self.dataset)
        set_epoch_in([self.dataset], epoch)
        if not self.resumable:
            return self._opened(position)
        known, mine = position.reader is not None, position.reader is self
        front, at_front = position.start(self.dataset, self)
        end = self._end[1] if state is None and self._end is not None and self._end[0] == epoch - 1 else None
        if end is not None and not (known and at_front):
            if not (mine and self._stands_there):
                self._load(end)
                self._resumed = ""
            position.reads(self)
            return self._next_pass(position, front)
        if state is not None:
            self._warn_of_buffers()
        # Some datasets begin every pass at the last loaded state, so the start is loaded too.
        if state is not None or not at_front:
            self._load(front if state is None else state)
        self._resumed = ""
        samples = self._opened(position)
        return samples if state is None else self._noted(samples)

    def _opened(self, position: StreamPosition) -> Iterator[Any]:
        samples: Iterator[Any] = iter(self.dataset)
        name = type(self.dataset).__name__
        refuse_unordered(samples, f"what {name} iterates over")
        check_starts_anew(samples, position, name)
        position.reads(self)
        return samples

    def _next_pass(self, position: StreamPosition, front: Any) -> Iterator[Any]:
        """The pass after one that has ended: the dataset goes on by itself, since it may draw or count its passes.

        Some datasets stay at their end, or begin at the last loaded state again; these begin at the front.
        """
        for _ in range(2):  # some begin anew only in the second pass after their end was loaded
            samples = self._opened(position)
            first = next(samples, _ENDED)
            if first is not _ENDED:
                break
            seed_this()
        if first is _ENDED or (self._resumed and digest(self.dataset.state_dict()) == self._resumed):
            self._load(front)
            samples = self._opened(position)
            seed_this()
        else:
            yield first
        self._resumed = ""
        yield from samples

    def _noted(self, samples: Iterator[Any]) -> Iterator[Any]:
        first = next(samples, _ENDED)
        if first is not _ENDED:
            self._resumed = digest(self.dataset.state_dict())
            yield first
            yield from samples

    def _load(self, state: Any) -> None:
        self.dataset.load_state_dict(deepcopy(state))

    def _warn_of_buffers(self) -> None:
        buffered = _in_shuffle_buffers(self.dataset)
        if buffered:
            warnings.warn(
                f"{type(self.dataset).__name__} does not save its shuffle buffer: up to {buffered} samples are "
                "lost in this resumed epoch, and some may come twice. Resume at the start of an epoch, or "
                "shuffle by index (a map-style dataset with shuffle=True) or by Shards",
                RuntimeWarning,
                stacklevel=3,
            )

    def state(self) -> Any:
        """The dataset's own state; None where it has none."""
        if not self.resumable:
            return None
        # A copy: some datasets return the dict that they go on to change.
        found = deepcopy(self.dataset.state_dict())
        position_of(self.dataset).looked(found)
        return found

    def finish(self, epoch: int, end: Any) -> None:
        """Note the state at the end of a pass, whose last samples are delivered."""
        if self.resumable:
            self._end, self._stands_there = (epoch, end), True

    def carried(self) -> dict[str, Any]:
        """Return the changes of the passes so far on the object, or its state at the end of the latest one."""
        if self._carried is not None:
            return self._carried.now()
        return {} if self._end is None else {"epoch": self._end[0], "end": self._end[1]}

    def carry(self, state: dict[str, Any]) -> None:
        """Go on after passes elsewhere, which have changed their copy of the object."""
        if self._carried is not None:
            self._carried.set(state)
        self._end, self._stands_there = (state["epoch"], state["end"]) if "end" in state else None, False

    def was_moved(self) -> bool:
        """Whether another loader has begun a pass of the same object."""
        return self.resumable and position_of(self.dataset).reader is not self


class FactoryIterable:
    """An iterable that calls a function for each pass, and iterates over the result.

    Args:
        make: Returns an iterator, such as a generator.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        made = self._make()
        refuse_unordered(made, "what the callable returns")
        return iter(made)


def open_stream(
    dataset: object, factory: Callable[[], object] | None, seed: int, *, shuffle: bool
) -> SampleStream | None:
    """The stream of a dataset; None where it has indices.

    Args:
        dataset: The dataset.
        factory: The callable that built it; None without one.
        seed: Seed of its order.
        shuffle: Shuffle its order.

    Raises:
        TypeError: It is a generator, which can be read only once.
        ValueError: `shuffle` is given for a stream other than shards.
    """
    refuse_unordered(dataset, "the dataset")
    refuse_frames(dataset)
    if isinstance(dataset, Shards):
        return ShardStream(dataset, seed, shuffle=shuffle) if dataset.lengths is None else None
    if not isinstance(dataset, Iterable) or (hasattr(dataset, "__getitem__") and not _is_torch_iterable(dataset)):
        return None
    if isinstance(dataset, Iterator) and factory is not None:
        dataset = FactoryIterable(factory)
    if isinstance(dataset, Iterator):
        raise TypeError(
            f"a {type(dataset).__name__} can be iterated only once; pass an object with "
            "__iter__, or the callable that makes it"
        )
    if shuffle:
        raise ValueError(
            f"shuffle=True needs samples by index, and {type(dataset).__name__} has no indices: shuffle it "
            "itself, or pass Shards, whose order is shuffled"
        )
    return IterableStream(dataset)


def refuse_resume(dataset: str) -> NotResumableError:
    """The error for a stream that cannot resume at a position."""
    return NotResumableError(
        f"{dataset} cannot be resumed within an epoch: it can be iterated only from its start. Give it "
        "state_dict() and load_state_dict(), pass Shards, or save at the end of an epoch (position 0)"
    )


def _in_shuffle_buffers(dataset: object) -> int:
    """Samples in the shuffle buffers of a Hugging Face stream; 0 where none is found.

    datasets (5.2) shows a shuffle buffer neither in a public attribute nor in `state_dict()`, so its private parts are
    searched. In a version that names them otherwise there is no warning, and resuming works as before.
    """
    home = "datasets.iterable_dataset"
    found, parts = 0, [dataset] if type(dataset).__module__ == home else []
    while parts:
        part: Any = parts.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            found += getattr(part, "buffer_size", 1)
        for value in vars(part).values():
            inner = value if isinstance(value, (list, tuple)) else [value]
            parts += [own for own in inner if type(own).__module__ == home and hasattr(own, "__dict__")]
    return found


def _is_torch_iterable(dataset: object) -> bool:
    return any(
        kind.__name__ == "IterableDataset" and kind.__module__.partition(".")[0] == "torch"
        for kind in type(dataset).__mro__
    )
