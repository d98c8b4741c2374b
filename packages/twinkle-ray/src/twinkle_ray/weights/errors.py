"""The errors of a weight sync."""

from __future__ import annotations

from twinkle_remote.errors import TwinkleError


class WeightSyncError(TwinkleError):
    """A sync failed: no rank of the target has taken anything of the new version."""


class ManifestError(WeightSyncError, ValueError):
    """The two sides do not describe the same weights; raised before the first byte moves."""


class WeightSyncTimeoutError(WeightSyncError, TimeoutError):
    """A sync passed its deadline."""
