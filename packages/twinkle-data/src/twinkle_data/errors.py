"""The errors of loading data. They stand apart because every other module raises one of them."""

from __future__ import annotations

from twinkle_remote.errors import TwinkleError


class StateMismatchError(TwinkleError, ValueError):
    """A saved state belongs to another dataset, seed or order; the message shows both sides."""


class RanksDifferError(TwinkleError, ValueError):
    """The ranks of a loader have different datasets, so rows would be repeated or missing."""


class NotResumableError(TwinkleError):
    """A position cannot be saved or reached: a sampler has a generator of its own, or a stream has no state."""


class BadSampleError(TwinkleError):
    """A sample cannot be read; the cause says why.

    Args:
        text: The message.
        index: Index of the sample in the dataset; -1 where it is not known.
    """

    def __init__(self, text: str, index: int = -1) -> None:
        super().__init__(text)
        self.index = index
