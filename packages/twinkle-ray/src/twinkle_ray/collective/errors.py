"""The errors of collectives, apart from ValueError."""

from __future__ import annotations

from twinkle_remote.errors import TwinkleError


class CollectiveError(TwinkleError, RuntimeError):
    """A collective failed: a peer is dead, stopped or late, or runs another operation."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """Ranks did not enter a collective within its deadline; the message names them."""


class CollectiveMismatchError(CollectiveError, ValueError):
    """Ranks entered different collectives, or one with different shapes, dtypes or sources; the message lists them."""
