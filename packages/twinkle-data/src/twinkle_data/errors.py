"""What goes wrong with data, under the project's one root."""

from __future__ import annotations

from twinkle_remote.errors import TwinkleError


class StateMismatchError(TwinkleError, ValueError):
    """A saved state belongs to another dataset, seed or algorithm; the message shows both sides."""


class LoaderProcessError(TwinkleError, RuntimeError):
    """Loader processes died or stood still more often than the restarts allow."""


class BadSampleError(TwinkleError, RuntimeError):
    """A sample cannot be read.

    What a loop sees is also an instance of the type that was raised while reading.

    Attributes:
        index: Index of the sample in the dataset.
    """

    index: int = -1
