"""Rewards as a component; the names of `twinkle_engines.algorithms.grading`."""

from twinkle_engines.algorithms.grading import Rewards, rewards

__all__ = ["Rewards", "rewards"]
