"""Reads streams: every rank reads all samples and keeps its rows of each global batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_data.batch import Batch, BatchInfo
from twinkle_data.errors import bad_sample
from twinkle_data.loading.ranks.steps_on_ranks import is_compared
from twinkle_data.order.steps import Step
from twinkle_data.order.tails import share
from twinkle_data.reading.delivery import Delivery
from twinkle_data.reading.reader import check_empty, collated, make_batch, own_rows, valid_rows
from twinkle_data.reading.written_again import WrittenAgain
from twinkle_data.sources.fingerprint import digest
from twinkle_data.sources.streams import refuse_resume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twinkle_data.cursor import Cursor
    from twinkle_data.order.steps import DataShard
    from twinkle_data.order.tails import Tail
    from twinkle_data.reading.randomness import Randomness
    from twinkle_data.sources.streams import SampleStream

_ENDED = object()


class StreamPlan:
    """Steps of a stream; only reading shows where an epoch ends.

    Args:
        batch_size: Samples of a global batch.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def normalize(self, cursor: Cursor) -> Cursor:
        """The same cursor: only reading shows whether it is the end of an epoch."""
        return cursor

    def steps_left(self, cursor: Cursor) -> int:
        """Raise: a stream has no length.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a loader over a stream has no length: its end is known when it is reached")

    def samples_left(self, cursor: Cursor) -> int | None:
        """None: a stream has no length."""
        return None

    def steps(self, cursor: Cursor, shard: DataShard) -> Iterator[Step]:
        """Steps from the cursor on, without an end."""
        position = cursor.position
        while True:
            yield Step(cursor.epoch, position, self._batch_size, [])
            position += self._batch_size


class StreamReader:
    """Reads the steps of a stream in order, one batch ahead, so that it can mark the last one.

    Args:
        stream: The stream.
        batch_size: Samples of a global batch.
        tail: What happens to the last rows of an epoch.
        shard: The data rank whose rows are kept.
        sharded: Mark batches as one rank's share.
        collate: Turns a `Batch` into what the loop gets; None keeps the batch.
        randomness: Seeds the generators for samples and for `collate`.
        name: Name of the dataset in error texts.
        digests: Take digests of some global batches, which ranks compare.
    """

    def __init__(
        self,
        stream: SampleStream,
        *,
        batch_size: int,
        tail: Tail,
        shard: DataShard,
        sharded: bool,
        collate: Callable[[Batch[Any]], Any] | None,
        randomness: Randomness,
        name: str,
        digests: bool = False,
    ) -> None:
        self._stream = stream
        self._batch_size = batch_size
        self._tail: Tail = tail
        self._shard = shard
        self._sharded = sharded
        self._collate = collate
        self._randomness = randomness
        self._name = name
        self._digests = digests
        self._samples: Iterator[Any] = iter(())
        self._expected: tuple[int, int] | None = None
        self._ahead = _Ahead([])
        self._written_again = WrittenAgain()
        # Loader processes read ahead, so they can ask for steps after the end.
        self._ended: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_samples": None, "_expected": None, "_ahead": _Ahead([])}

    @property
    def dataset(self) -> Any:
        """The dataset as the user gave it."""
        return self._stream.dataset

    @property
    def user_code(self) -> list[Any]:
        """The objects whose code runs when a step is read."""
        return [one for one in (self._stream.dataset, self._collate) if one is not None]

    def read(self, step: Step) -> Delivery:
        """Read one step; a delivery without rows means that the epoch is over.

        Raises:
            BadSampleError: The stream raised.
            NotResumableError: The stream is at another position, and cannot go to this step.
            WrittenAgainError: The stream wrote to a row after it gave it.
        """
        with self._randomness.held():
            return self._read(step)

    def _read(self, step: Step) -> Delivery:
        if self._ended is not None and self._ended <= (step.epoch, step.position) < (self._ended[0] + 1, 0):
            return Delivery(BatchInfo(step.epoch, step.position, [], [], 0), None, last=True)
        if self._expected != (step.epoch, step.position):
            if step.position and step.source is None:
                raise refuse_resume(self._name)
            self._samples = self._stream.begin(step.epoch, step.source)
            self._ahead = self._take(step.epoch, step.position)
        self._expected = None
        rows, source, error, _ = self._ahead
        if error is not None:
            raise error
        if len(rows) < self._batch_size and self._tail == "drop":
            rows = []
        if self._ahead.source is not None and self._stream.was_moved():
            self._samples = self._stream.begin(step.epoch, self._ahead.source)
        if not rows:
            if not step.position:
                raise ValueError(
                    f"an epoch of {self._name} has no step: it ended after {len(self._ahead.rows)} samples, with "
                    f"batch_size={self._batch_size} and tail={self._tail!r}"
                )
            return self._nothing_left(step)
        if len(rows) == self._batch_size:
            self._ahead = self._take(step.epoch, step.position + len(rows), kept=rows)
        else:
            self._ahead = _Ahead([], end=self._ahead.end)
        left = len(self._ahead.rows)
        ended = left == 0 or (self._tail == "drop" and left < self._batch_size)
        last = ended and self._ahead.error is None
        self._expected = step.epoch, step.position + len(rows)
        self._ended = self._expected if last else None
        return self._deliver(step._replace(rows=len(rows)), rows, source, last=last)

    def _next(self, _: int) -> Any:
        sample = next(self._samples, _ENDED)
        if sample is _ENDED:
            self._samples = iter(())  # some iterators begin again when they are asked after their end
        return sample

    def _nothing_left(self, step: Step) -> Delivery:
        self._stream.finish(step.epoch, self._ahead.end)
        return Delivery(BatchInfo(step.epoch, step.position, [], [], 0), None, last=True, carried=self._carried())

    def _take(self, epoch: int, position: int, kept: Sequence[Any] = ()) -> _Ahead:
        wanted = range(position, position + self._batch_size)
        self._written_again.begin()
        if kept:
            self._written_again.keep(kept[0])
        samples = self._randomness.each(epoch, wanted, self._next, _Raised)
        self._written_again.check(samples, self._name)
        self._written_again.end()
        for row, sample in enumerate(samples):
            if type(sample) is _Raised:
                cause = sample.error
                text = f"{self._name} raised at sample {position + row} of epoch {epoch}"
                error = bad_sample(f"{text}: {type(cause).__name__}: {cause}", position + row, cause)
                return _Ahead(samples[:row], error=error)
        rows = [sample for sample in samples if sample is not _ENDED]
        state = self._stream.state()
        return _Ahead(rows, state) if len(rows) == self._batch_size else _Ahead(rows, end=state)

    def _deliver(self, step: Step, rows: list[Any], source: Any, *, last: bool) -> Delivery:
        offsets: list[int] = []
        fillers: list[int] = []
        for rank in self._shard.ranks:
            own = share(len(rows), self._shard.data_world_size, rank, self._tail)
            offsets += range(own.start, own.stop)
            fillers += range(len(offsets), len(offsets) + len(own.fillers))
            offsets += own.fillers
        valid = valid_rows(len(offsets), fillers)
        indices = [step.position + offset for offset in offsets]
        step = step._replace(indices=indices, source=None)
        samples = own_rows([rows[offset] for offset in offsets], fillers)
        seen = digest(rows) if self._digests and is_compared(step.position // self._batch_size) else ""
        if self._tail == "short" and self._shard.data_rank is not None and len(rows) < self._shard.data_world_size:
            check_empty(step, self._collate, self._randomness)  # on all ranks, or some would wait for the others
        batch = make_batch(step, samples, indices, valid, sharded=self._sharded)
        info = BatchInfo(step.epoch, step.position, indices, valid, step.rows)
        payload = collated(batch, step, self._collate, self._randomness)
        if last:
            self._stream.finish(step.epoch, self._ahead.end)
        carried = self._carried() if last else None
        return Delivery(info, payload, source=source, last=last, rows_digest=seen, carried=carried)

    def _carried(self) -> dict[str, Any] | None:
        return self._stream.carried() if _in_loader_process() else None


def _in_loader_process() -> bool:
    from torch.utils.data import get_worker_info

    return get_worker_info() is not None


class _Ahead(NamedTuple):
    """The rows of the next global batch, the stream's state after them, and the error that cut them short.

    At the end of a pass, `end` is the state, and there is no `source`.
    """

    rows: list[Any]
    source: Any = None
    error: Exception | None = None
    end: Any = None


class _Raised:
    def __init__(self, error: Exception) -> None:
        self.error = error
