"""The errors of a weight sync."""

from __future__ import annotations

from twinkle_remote.errors import TwinkleError


class WeightSyncError(TwinkleError):
    """A sync failed: the target keeps the weights that it had, unless the text says that the new ones are there."""


class ManifestError(WeightSyncError, ValueError):
    """The two sides do not describe the same weights; raised before the first byte moves."""


class UnsettledWeightsError(WeightSyncError):
    """A component that is to give its weights holds values of a failed sync, which it never took."""


class WeightSyncTimeoutError(WeightSyncError, TimeoutError):
    """A sync passed its deadline, or a worker showed no sign of life for too long."""


class PeerFailedError(WeightSyncError):
    """Another rank failed first; the controller's error names that rank."""


class LinkLostError(WeightSyncError, RuntimeError):
    """A connection to a peer broke; the cause is the peer's own failure or death."""
