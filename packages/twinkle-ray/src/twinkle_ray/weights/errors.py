"""What a weight sync raises."""

from __future__ import annotations

from twinkle_remote.errors import TwinkleError


class WeightSyncError(TwinkleError):
    """A sync failed as a whole: the target keeps the weights that it had."""


class ManifestError(WeightSyncError, ValueError):
    """The two sides do not describe the same weights; found before the first byte moves."""


class WeightSyncTimeoutError(WeightSyncError, TimeoutError):
    """A sync passed its deadline, or a participant was silent for too long."""


class PeerFailedError(WeightSyncError):
    """This rank is well, but another one failed first; the controller's error names that one."""


class LinkLostError(WeightSyncError, RuntimeError):
    """A connection to a peer broke; the peer's own failure, or its death, says why."""
