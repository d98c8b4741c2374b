"""Streams: every rank reads all samples of an iterable, and keeps its rows of each global batch.

So all ranks take equally many steps without a word between them. The state of the iterable goes with each batch; an
iterable without one is resumed by skipping. A pass begins at the start of the iterable, whatever was loaded before.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_data.batch import BatchInfo
from twinkle_data.errors import BadSampleError
from twinkle_data.plan import share_of
from twinkle_data.reading import Read, SampleReader
from twinkle_data.sources import digest, set_epoch, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_data.ranks import RankShare
    from twinkle_data.state import Position

_ENDED = object()


class StreamStep(NamedTuple):
    """A step of a stream; only reading shows whether it exists."""

    epoch: int
    position: int  # samples of the epoch before it
    begins: bool  # it is the first of a loop
    source: Any = None  # state of the stream before it, in the first step of a loop


def stream_steps(at: Position, batch_size: int) -> Iterator[StreamStep]:
    """The steps from a position on, without an end."""
    for number in count():
        position = at.position + number * batch_size
        yield StreamStep(at.epoch, position, not number, None if number else at.source)


def state_of(dataset: Any) -> Any:
    """A copy of the state of an iterable; None of one without `state_dict` and `load_state_dict`."""
    known = all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))
    return deepcopy(dataset.state_dict()) if known else None


class StreamReader(SampleReader):
    """Reads the steps of a stream in order; picklable before it has begun.

    A dataset with `state_dict` and `load_state_dict` is resumed by these; `start` is its state before the first pass,
    also in a copy of its loader. A sample draws by its number in the epoch. The rank None keeps all rows.
    """

    def __init__(
        self, dataset: Any, seed: int, start: Any, share: RankShare, *, batch_size: int, drop_last: bool, **options: Any
    ) -> None:
        super().__init__(dataset, seed, **options)
        (self._world, self._rank, _), self._batch_size, self._drop_last = share, batch_size, drop_last
        self._has_state, self._initial = start is not None, start  # its state before the first pass
        self._iterator: Iterator[Any] = iter(())
        self._next: tuple[int, int] | None = None  # epoch and position of the row that comes next
        self._next_epoch: int | None = None  # the epoch that comes next, after a pass that was read to its end
        self._begun = False
        self._ended = False  # the iterator is at its end
        self._loaded = ""  # the state after the first row of a pass that began at a loaded state

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": iter(()), "_next": None, "_next_epoch": None}

    def _read(self, step: StreamStep) -> Read | None:
        """Read one step; of the one after the last, which has no rows, the state of the stream there."""
        if self._next != (step.epoch, step.position):
            if not step.begins:
                return None  # a loader process is asked ahead, beyond the end
            self._begin(step)
        self._next = self._next_epoch = None  # where it stands is not known, should the program be interrupted
        rows = self._take(step.epoch, step.position, self._batch_size)
        whole, source = len(rows) == self._batch_size, state_of(self.dataset)
        if not rows or (self._drop_last and not whole):
            if not step.position:
                raise ValueError(
                    f"an epoch of a {type(self.dataset).__name__} has no step: it ended after {len(rows)} samples, "
                    f"with batch_size={self._batch_size} and drop_last={self._drop_last}"
                )
            self._next_epoch = step.epoch + 1
            return Read(BatchInfo(step.epoch, step.position, [], [], 0), None, source=source)
        self._next = step.epoch, step.position + self._batch_size
        return self._delivered(step, rows, source)

    def _begin(self, step: StreamStep) -> None:
        """Go to the position of a step: by the state before it, or by skipping."""
        begun, stands_there = self._begun, not step.position and self._next_epoch == step.epoch
        self._ended, self._begun = False, True
        set_epoch(self.dataset, step.epoch)
        if self._has_state and not stands_there and (begun or step.source is not None):
            self.dataset.load_state_dict(deepcopy(self._initial if step.source is None else step.source))
        if not self._has_state or (step.position and step.source is None):
            self._iterator = iter(self.dataset)
            for position in range(0, step.position, self._batch_size):
                self._take(step.epoch, position, min(self._batch_size, step.position - position))
        else:
            self._iterator = self._from_state() if step.position else self._from_start()

    def _from_state(self) -> Iterator[Any]:
        for number, sample in enumerate(self.dataset):
            if not number:
                self._loaded = text_of(self.dataset.state_dict())
            yield sample

    def _from_start(self) -> Iterator[Any]:
        """A pass from the start; some iterables stay at their end, or begin at the last loaded state again."""
        loaded, self._loaded = self._loaded, ""
        for _ in range(2):  # some begin anew only in the second pass after their end was loaded
            samples = iter(self.dataset)
            first = next(samples, _ENDED)
            if first is not _ENDED:
                break
        if first is _ENDED or (loaded and text_of(self.dataset.state_dict()) == loaded):
            self._begin_sample(0)
            self.dataset.load_state_dict(deepcopy(self._initial))
            samples = iter(self.dataset)
            first = next(samples, _ENDED)
        if first is not _ENDED:
            yield first
            yield from samples

    def _take(self, epoch: int, position: int, rows: int) -> list[Any]:
        """The next rows; fewer at the end."""

        def read(index: int) -> Any:
            if self._ended:  # some iterators begin again when they are asked after their end
                return _ENDED
            try:
                sample = next(self._iterator, _ENDED)
            except Exception as error:  # whatever the stream raises
                self._ended = True
                name = type(self.dataset).__name__
                raise BadSampleError(
                    f"{name} raised at sample {index} of epoch {epoch}: {type(error).__name__}: {error}", index
                ) from error
            self._ended = sample is _ENDED
            return sample

        found = self._each(epoch, range(position, position + rows), read)
        return [sample for sample in found if sample is not _ENDED]

    def _delivered(self, step: StreamStep, rows: list[Any], source: Any) -> Read:
        own, padding = (range(len(rows)), 0) if self._rank is None else share_of(len(rows), self._world, self._rank)
        offsets = [*own, *[len(rows) - 1] * padding]
        valid = [True] * len(own) + [False] * padding
        info = BatchInfo(step.epoch, step.position, [step.position + offset for offset in offsets], valid, len(rows))
        compared = digest(*(text_of(row, floats=False) for row in rows)) if step.begins else ""
        return self._collated([rows[offset] for offset in offsets], info, source=source, compared=compared)
