"""Losses: functions of what a model gives and its batch, with one value for each token, sequence or pair.

`loss(current, batch, **options) -> (values, measures)`: `current` is log-probabilities by token (head "lm"), values by
token ("value") or scores by sequence ("score"). A batch is a mapping such as `Rollouts.pad` and `Rollouts.pack` make.
The values of tokens that do not count (`counted`) have no meaning; `average` leaves them out. docs/algorithms.md has
the notation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from twinkle_engines.algorithms.losses.counting import Normalization, average, counted, needed, total_and_count
from twinkle_engines.algorithms.losses.pairs import bradley_terry, dpo, ipo, orpo, simpo
from twinkle_engines.algorithms.losses.policy import cispo, dapo, grpo, gspo, importance_sampling, k3, ppo, reinforce
from twinkle_engines.algorithms.losses.targets import cross_entropy, forward_kl, jsd, reverse_kl, value

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_engines.algorithms.losses.policy import Made


class NamedLoss(NamedTuple):
    """A loss that has a name.

    Attributes:
        function: From what the model gives, and the batch, to values and what was measured.
        normalize: What its mean counts, as in its paper: "token", "sequence" or "pair".
        reads: The columns that it cannot do without.
        head: The model's head whose output it takes.
    """

    function: Callable[..., Made]
    normalize: Literal["token", "sequence", "pair"]
    reads: tuple[str, ...] = ()
    head: Literal["lm", "value", "score"] = "lm"

    @property
    def is_sampled(self) -> bool:
        """Whether it is an expectation over what was sampled, as policy gradients are."""
        return "advantages" in self.reads


_RATIO = ("logprobs", "advantages")
LOSSES = {
    "cross_entropy": NamedLoss(cross_entropy, "token"),
    "ppo": NamedLoss(ppo, "token", _RATIO),
    "grpo": NamedLoss(grpo, "sequence", _RATIO),
    "dapo": NamedLoss(dapo, "token", _RATIO),
    "gspo": NamedLoss(gspo, "sequence", _RATIO),
    "cispo": NamedLoss(cispo, "token", _RATIO),
    "importance_sampling": NamedLoss(importance_sampling, "token", _RATIO),
    "reinforce": NamedLoss(reinforce, "token", ("advantages",)),
    "dpo": NamedLoss(dpo, "pair", ("ref_logprobs",)),
    "ipo": NamedLoss(ipo, "pair", ("ref_logprobs",)),
    "simpo": NamedLoss(simpo, "pair"),
    "orpo": NamedLoss(orpo, "pair"),
    "value": NamedLoss(value, "token", ("returns",), "value"),
    "bradley_terry": NamedLoss(bradley_terry, "pair", (), "score"),
    "reverse_kl": NamedLoss(reverse_kl, "token", ("teacher",)),
    "forward_kl": NamedLoss(forward_kl, "token", ("teacher_ids", "teacher_top")),
    "jsd": NamedLoss(jsd, "token", ("teacher_ids", "teacher_top")),
}
"""The losses by name."""

__all__ = [
    "LOSSES",
    "NamedLoss",
    "Normalization",
    "average",
    "bradley_terry",
    "cispo",
    "counted",
    "cross_entropy",
    "dapo",
    "dpo",
    "forward_kl",
    "grpo",
    "gspo",
    "importance_sampling",
    "ipo",
    "jsd",
    "k3",
    "needed",
    "orpo",
    "ppo",
    "reinforce",
    "reverse_kl",
    "simpo",
    "total_and_count",
    "value",
]
