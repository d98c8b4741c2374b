"""Losses as plain functions of a token's log-probability; the names of `twinkle_engines.algorithms.losses`."""

from twinkle_engines.algorithms.losses import *  # noqa: F403  the names of that module, no others
from twinkle_engines.algorithms.losses import __all__ as __all__
