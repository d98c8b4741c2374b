"""Reads the samples of a step; retries, skips or replaces those that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from twinkle_data.errors import BadSampleError, bad_sample
from twinkle_data.option_checks import seconds
from twinkle_data.order.permutation import derive
from twinkle_data.reading.written_again import WrittenAgainError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from twinkle_data.reading.randomness import Randomness
    from twinkle_data.sources.indexed import Source

OnError: TypeAlias = Literal["raise", "skip", "replace"]
ON_ERROR: tuple[str, ...] = get_args(OnError)

# ConnectionError and TimeoutError are OSErrors; an error about a path is permanent.
_TRANSIENT = (OSError,)
_LASTING = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_CANDIDATES = 64
_REPLACE = 0x7265706C


@dataclass(frozen=True, slots=True)
class Policy:
    """The treatment of samples that cannot be read.

    Attributes:
        on_error: `raise`, `skip` (another sample takes the row, which is masked) or `replace` (another sample takes
            the row).
        retries: Further attempts after a transient error, at least 0.
        backoff_s: Seconds before the first retry; doubled for each further one.
        max_bad: Number of bad samples that are accepted; more are an error.
    """

    on_error: OnError = "raise"
    retries: int = 3
    backoff_s: float = 0.1
    max_bad: int = 1000

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise ValueError(f"on_error={self.on_error!r} is not one of {', '.join(map(repr, ON_ERROR))}")
        object.__setattr__(self, "backoff_s", seconds("backoff_s", self.backoff_s))
        if self.retries < 0 or self.max_bad < 0:
            raise ValueError(f"retries={self.retries} and max_bad={self.max_bad} must be at least 0")


@dataclass(slots=True)
class SampleRows:
    """The rows that were read.

    Attributes:
        samples: One for each index asked for.
        indices: Index of the sample in each row: the one asked for, or its replacement.
        masked: Rows whose own sample could not be read.
        bad: Indices of the samples that could not be read.
    """

    samples: list[Any]
    indices: list[int]
    masked: list[int]
    bad: list[int]


class Sampling:
    """Reads samples of a source; picklable where the source is.

    Args:
        source: Where they are.
        randomness: What they draw from.
        policy: What to do with samples that cannot be read.
        quarantine: Indices of bad samples, which are not read again.
        sizes: Tokens of each sample, where a replacement must not be longer than the sample.
    """

    def __init__(
        self,
        source: Source,
        randomness: Randomness,
        policy: Policy,
        quarantine: Iterable[int] = (),
        sizes: NDArray[np.int64] | None = None,
    ) -> None:
        self.source = source
        self.randomness = randomness
        self._policy = policy
        self._sizes = sizes
        self._bad = set(quarantine)
        self._failures = 0

    def read(self, epoch: int, indices: Sequence[int]) -> SampleRows:
        """Read the given samples.

        Raises:
            BadSampleError: One cannot be read and the policy is to raise, or too many cannot.
        """
        self._failures = 0
        known = self._bad.intersection(indices) if self._bad and self._policy.on_error != "raise" else None
        if known:
            read = iter(self._first_attempts(epoch, [index for index in indices if index not in known]))
            samples = [_Failed(None, 0) if index in known else next(read) for index in indices]
        else:
            samples = self._first_attempts(epoch, indices)
        rows = SampleRows(samples, list(indices), [], [])
        if known or self._failures:
            for row, sample in enumerate(samples):
                if type(sample) is _Failed:
                    self._resolve(rows, row, epoch, sample)
        return rows

    def _first_attempts(self, epoch: int, indices: Sequence[int]) -> list[Any]:
        portions = self.source.portions(indices)
        if portions is None:
            return self._attempt(epoch, indices, self.source, 0)
        samples: list[Any] = [None] * len(indices)
        for portion in portions:
            own = self._attempt(epoch, [indices[row] for row in portion.rows], portion.source, portion.start)
            for row, sample in zip(portion.rows, own, strict=True):
                samples[row] = sample
        return samples

    def _attempt(self, epoch: int, indices: Sequence[int], source: Source, start: int) -> list[Any]:
        """Read samples of one dataset, which begins at index `start`; together where the source prefers that."""

        def together(asked: Sequence[int]) -> list[Any]:
            return source.read_many([index - start for index in asked] if start else asked)

        if not (source.plain or source.at_once) or not indices:
            read = source.read
            return self.randomness.each(
                epoch, indices, (lambda index: read(index - start)) if start else read, self._failed
            )
        try:
            if source.plain:
                return together(indices)
            samples = self.randomness.together(epoch, indices, together, self._failed_together, dataset=start)
        except WrittenAgainError:
            raise
        except Exception as error:  # reading them one by one shows which sample it was
            samples = [self._failed_together(error)] * len(indices)
        if self._failures and any(type(own) is _Failed and own.error is None and own.attempts for own in samples):
            # Wait once for all of these samples, not once for each.
            self.randomness.wait(self._policy.backoff_s)
        return samples

    def _failed_together(self, error: Exception) -> _Failed:
        self._failures += 1
        return _Failed(None, int(_is_transient(error)))

    def _failed(self, error: Exception) -> _Failed:
        self._failures += 1
        return _Failed(error, 1)

    def _resolve(self, rows: SampleRows, row: int, epoch: int, failed: _Failed) -> None:
        index = rows.indices[row]
        outcome = self._persist(epoch, index, failed)
        if type(outcome) is not _Failed:
            rows.samples[row] = outcome
            return
        if self._policy.on_error == "raise":
            raise self._error(epoch, index, outcome)
        rows.bad.append(index)
        rows.samples[row], found = self._substitute(rows, epoch, index, outcome)
        if self._policy.on_error == "skip":
            rows.masked.append(row)
        else:
            rows.indices[row] = found

    def _persist(self, epoch: int, index: int, failed: _Failed) -> Any:
        """The sample, after the retries that its errors allow; a `_Failed` when it is bad."""
        if index in self._bad and self._policy.on_error != "raise":
            return failed
        attempts, error = failed.attempts, failed.error
        wait = self._policy.backoff_s
        # A failed read of several samples has no error for this one, so it is read once more.
        while error is None or (_is_transient(error) and attempts <= self._policy.retries):
            if error is not None:
                self.randomness.wait(wait)
                wait *= 2
            (outcome,) = self.randomness.each(epoch, [index], self.source.read, self._failed)
            if type(outcome) is not _Failed:
                return outcome
            attempts, error = attempts + 1, outcome.error
        self._bad.add(index)
        return _Failed(error, attempts)

    def _substitute(self, rows: SampleRows, epoch: int, index: int, failed: _Failed) -> tuple[Any, int]:
        start, stop = self.source.span(index)
        fitting: Sequence[int] | NDArray[np.int64] = range(start, stop)
        if self._sizes is not None:
            fitting = start + np.flatnonzero(self._sizes[start:stop] <= self._sizes[index])
        for turn in range(_CANDIDATES):
            if len(self._bad) > self._policy.max_bad:
                last = f"the last was {self._error(epoch, index, failed)}"
                raise bad_sample(too_many_bad(len(self._bad), self._policy.max_bad, last), index, failed.error)
            other = int(fitting[derive(self.randomness.seed, _REPLACE, epoch, index, turn) % len(fitting)])
            outcome = self._persist(epoch, other, _Failed(None, 0))
            if type(outcome) is not _Failed:
                return outcome, other
            rows.bad.append(other)
            failed = outcome if outcome.error is not None else failed
        short = "" if self._sizes is None else f" of at most its {self._sizes[index]} tokens"
        raise bad_sample(
            f"nothing readable{short} was found in place of sample {index} in {_CANDIDATES} attempts; the last was "
            f"{self._error(epoch, index, failed)}",
            index,
            failed.error,
        )

    def _error(self, epoch: int, index: int, failed: _Failed) -> BadSampleError:
        error = failed.error
        said = "it is in the quarantine" if error is None else f"{type(error).__name__}: {error}"
        tried = f" after {failed.attempts} attempts" if failed.attempts > 1 else ""
        return bad_sample(f"sample {index} cannot be read in epoch {epoch}{tried}: {said}", index, error)


def too_many_bad(found: int, max_bad: int, last: str) -> str:
    """The text of the error of more bad samples than are accepted."""
    why = "the dataset itself seems to be unreadable"
    return f"{found} samples cannot be read, more than max_bad={max_bad}: {why}; {last}"


def _is_transient(error: Exception) -> bool:
    return isinstance(error, _TRANSIENT) and not isinstance(error, _LASTING)


class _Failed:
    """Fills the row of a sample that was not read (yet)."""

    def __init__(self, error: Exception | None, attempts: int) -> None:
        self.error = error
        self.attempts = attempts
