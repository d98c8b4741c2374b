"""Open shards: a bounded number of iterators, each read on or opened again, whichever is faster."""

from __future__ import annotations

import errno
import io
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from time import perf_counter
from typing import Any, Final

from twinkle_data.sources.kinds import refuse_unordered
from twinkle_data.sources.sharded_order import WINDOW

# A shard that opens faster than this is opened again, so that no unwanted sample is read.
_QUICK_S: Final = 1e-4
_ENDED: Final = object()


class ShardEndedError(Exception):
    """A shard has no sample at an offset.

    Attributes:
        length: Number of samples of the shard.
    """

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length


class OpenShards:
    """Reads samples of shards by offset, fastest in ascending order; a pickled copy has no open shard.

    Attributes:
        opening_s: Seconds to open a shard; None before one was opened.
        reading_s: Seconds to read a sample of an open shard; None before one was read.

    Args:
        start: Returns an iterable over a shard from an offset on.
        before: Called before a sample is read, if anything else of its shard ran first: an opening, or samples that
            are passed over.
    """

    def __init__(self, start: Callable[[int, int], Iterable[Any]], before: Callable[[], None]) -> None:
        self._start = start
        self._before = before
        self._open: OrderedDict[int, tuple[int, Iterator[Any]]] = OrderedDict()
        # No order takes turns between more shards, so an older one has ended.
        self._most = min(_most_open(), WINDOW)
        # Measured time to open a shard, and to read one sample.
        self.opening_s: float | None = None
        self.reading_s: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenShards, (self._start, self._before)

    def take(self, shard: int, offset: int) -> Any:
        """Read one sample.

        Raises:
            ShardEndedError: The shard is shorter.
        """
        at, samples = self._open.pop(shard, (0, None))
        if samples is not None and self._reads_on(offset - at):
            begun = perf_counter()
            for skipped in range(offset - at):
                if next(samples, _ENDED) is _ENDED:
                    raise ShardEndedError(at + skipped)
            if offset > at:
                self._before()
            sample = next(samples, _ENDED)
            self.reading_s = _less(self.reading_s, (perf_counter() - begun) / (offset - at + 1))
        else:
            _close(samples)
            begun = perf_counter()
            samples, sample = self._begin(shard, offset)
            self.opening_s = _less(self.opening_s, perf_counter() - begun)
        if sample is _ENDED:
            raise ShardEndedError(offset)
        self._open[shard] = offset + 1, samples
        while len(self._open) > self._most:
            self._close_oldest()
        return sample

    def has_sample(self, shard: int, offset: int) -> bool:
        """Whether a shard has a sample at an offset, where it ought to end; it is closed, since none is asked for."""
        at, samples = self._open.pop(shard, (-1, None))
        try:
            if at != offset:  # it was closed meanwhile, to make room for others
                _close(samples)
                samples = iter(self._start(shard, offset))
            return samples is not None and next(samples, _ENDED) is not _ENDED
        except Exception:  # it is not read, so it need not be readable
            return False
        finally:
            _close(samples)

    def drop(self, shard: int) -> None:
        """Close a shard."""
        _close(self._open.pop(shard, (0, None))[1])

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._close_oldest()

    def _reads_on(self, gap: int) -> bool:
        if gap <= 0:
            return gap == 0
        opening = self.opening_s or 0.0
        return opening > _QUICK_S and (self.reading_s is None or gap * self.reading_s < opening)

    def _begin(self, shard: int, offset: int) -> tuple[Iterator[Any], Any]:
        while True:
            try:
                part = self._start(shard, offset)
                refuse_unordered(part, f"shard {shard}")
                samples = iter(part)
                refuse_unordered(samples, f"shard {shard}")
                self._before()
                return samples, next(samples, _ENDED)
            except OSError as error:
                if error.errno != errno.EMFILE or not self._open:
                    raise
                # The rest of the program needs descriptors too, so fewer shards stay open from here on.
                self._most = max(len(self._open) // 2, 1)
                while len(self._open) >= self._most:
                    self._close_oldest()

    def _close_oldest(self) -> None:
        _close(self._open.popitem(last=False)[1][1])


def _close(samples: Iterator[Any] | None) -> None:
    if isinstance(samples, (Generator, io.IOBase)):
        samples.close()


def _less(known: float | None, measured: float) -> float:
    """A measured time that falls at once and rises slowly, so that a busy machine changes it little."""
    return measured if known is None else min(measured, known * 1.1)


def _most_open() -> int:
    """Half of the file descriptors that this process may have."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
    except ImportError:  # not on Windows
        return 256
    soft, _ = getrlimit(RLIMIT_NOFILE)
    return 4096 if soft == RLIM_INFINITY else max(min(soft // 2, 4096), 1)
