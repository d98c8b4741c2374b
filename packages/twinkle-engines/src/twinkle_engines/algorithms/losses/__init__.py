"""Losses: functions of the log-probabilities and their batch, with one value for each token.

A batch is a mapping such as `Rollouts.pad` and `Rollouts.pack` make. The values of tokens that do not count
(`counted`) have no meaning; `average` leaves them out.
"""

from __future__ import annotations

from typing import Literal

from twinkle_engines.algorithms.losses.counting import Normalization, average, counted, reading, total_and_count
from twinkle_engines.algorithms.losses.kl import ESTIMATORS, k1, k2, k3
from twinkle_engines.algorithms.losses.offline import cross_entropy, dpo
from twinkle_engines.algorithms.losses.policy import cispo, grpo, gspo, importance_sampling

LOSSES = {
    "cispo": cispo,
    "cross_entropy": cross_entropy,
    "dpo": dpo,
    "grpo": grpo,
    "gspo": gspo,
    "importance_sampling": importance_sampling,
}
"""The losses by name. That of "dpo" has one value for each pair, the others one for each token."""

NORMALIZATIONS: dict[str, Literal["token", "sequence", "pair"]] = {
    "cispo": "token",
    "cross_entropy": "token",
    "dpo": "pair",
    "grpo": "sequence",
    "gspo": "sequence",
    "importance_sampling": "token",
}
"""The unit that the mean of each loss counts, as in its paper."""

COMPARING = frozenset(LOSSES) - {"cross_entropy"}
"""The losses that compare with log-probabilities of another model or moment, computed without dropout."""

READS = {
    "cispo": ("logprobs", "advantages"),
    "cross_entropy": (),
    "dpo": ("ref_logprobs",),
    "grpo": ("logprobs", "advantages"),
    "gspo": ("logprobs", "advantages"),
    "importance_sampling": ("logprobs", "advantages"),
}
"""The columns that each loss reads next to the tokens and those that count; "grpo" with a beta also `ref_logprobs`."""

SAMPLED = COMPARING - {"dpo"}
"""The losses that are an expectation over what was sampled: policy gradients."""

__all__ = [
    "COMPARING",
    "ESTIMATORS",
    "LOSSES",
    "NORMALIZATIONS",
    "READS",
    "SAMPLED",
    "Normalization",
    "average",
    "cispo",
    "counted",
    "cross_entropy",
    "dpo",
    "grpo",
    "gspo",
    "importance_sampling",
    "k1",
    "k2",
    "k3",
    "reading",
    "total_and_count",
]
